"""One line of the journal: what a model gave, how its process ended, and whether it is worth another try."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from erfscope.isolation.processes import ENDS, Limits, Outcome

#: How a process may have ended, where its results say that memory was short: an allocation that failed raises, and is not a signal.
SHORT = "memory"
_OF_MEMORY = re.compile(r"memory|alloc", re.IGNORECASE)


def entry_of(label: str, spec: str, outcome: Outcome, results: list[dict[str, Any]], limits: Limits) -> dict[str, Any]:
    """A line of the journal.

    Args:
        label: What the model is called.
        spec: The model.
        outcome: How its process ended.
        results: As in a report.
        limits: What it was allowed to take.
    """
    # Late, since a warm process imports this room before what it was told to.
    from erfscope.serialise import SCHEMA

    errors = " ".join(str(result["error"]) for result in results if result["status"] == "error")
    # Under a limit of memory, whatever cannot start a thread or take an exception's memory aborts.
    aborted = outcome.ended == "crashed" and limits.bytes is not None
    is_short = aborted or (outcome.ended in ("ok", "failed") and _OF_MEMORY.search(errors))
    return {
        "label": label,
        "model": spec,
        "seconds": round(outcome.seconds, 3),
        "ended": SHORT if is_short else outcome.ended,
        "limits": asdict(limits),
        "schema": SCHEMA,
        "results": results,
    }


def checked(entry: Any) -> dict[str, Any]:
    """A line as it was read, if it is one that :func:`entry_of` could have made, with its results in the present form.

    Raises:
        ErfscopeError: its results are of a later version of erfscope.
        KeyError, TypeError, ValueError: says what is wrong with it.
    """
    from erfscope.older import renewed, version_of
    from erfscope.serialise import SCHEMA, result_from_json
    from erfscope.wellformed import refuse_misfits

    if not isinstance(entry, dict) or not isinstance(entry["label"], str) or not isinstance(entry["model"], str):
        raise TypeError("a line is no model with its results")
    if entry["ended"] not in (*ENDS, SHORT):
        raise ValueError(f"a process cannot end with {str(entry['ended'])[:40]!r}")
    refuse_misfits(Limits(**entry["limits"]), "limits")
    if not isinstance(entry["results"], list) or not entry["results"]:
        raise TypeError(f"{entry['label'][:40]!r} has no list of results")
    # Lines of the first version do not say it.
    version = version_of(entry.get("schema", "erfscope.report/1"), f"the line of {entry['label'][:40]!r}")
    results = [renewed(result, version) for result in entry["results"]]
    for result in results:
        # Maps are read when all models are finished.
        stored = result_from_json({**result, "map_file": None})
        if result["map_file"] not in (None, f"{stored.id}.npz"):
            raise ValueError(f"the map file {str(result['map_file'])[:40]!r} is not that of {stored.id[:40]!r}")
    return {**entry, "schema": SCHEMA, "results": results}


def is_worth_another_try(entry: Mapping[str, Any], limits: Limits) -> bool:
    """Whether a model failed for lack of time or memory, and is allowed more of that now.

    Args:
        entry: A line of the journal.
        limits: What it is allowed now; none at all is more than any.
    """
    if entry["ended"] == "late":
        then, now = entry["limits"]["seconds"], limits.seconds
    elif entry["ended"] in ("killed", SHORT):
        then, now = entry["limits"]["bytes"], limits.bytes
    else:
        return False
    return now is None or (then is not None and now > then)
