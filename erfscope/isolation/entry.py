"""One line of the journal: what a model gave, how its process ended, and whether it is worth another try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

from erfscope.isolation.processes import Ended, Limits, Outcome
from erfscope.model_errors import MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """What a line of the journal holds."""

    label: str
    model: str
    ended: Ended
    limits: Limits
    schema: str
    results: Annotated[tuple[Mapping[str, Any], ...], Meta(min_length=1)]


def journal_line(
    label: str, spec: str, outcome: Outcome, results: list[dict[str, Any]], limits: Limits
) -> dict[str, Any]:
    """A line of the journal.

    Args:
        label: What the model is called.
        spec: The model.
        outcome: How its process ended.
        results: As in a report.
        limits: What it was allowed to take.
    """
    # Late, since a warm process imports this room before what it was told to.
    from erfscope.storage.json_format import SCHEMA

    return {
        "label": label,
        "model": spec,
        "seconds": round(outcome.seconds, 3),
        "ended": outcome.ended,
        "limits": asdict(limits),
        "schema": SCHEMA,
        "results": results,
    }


def checked_line(entry: Any) -> dict[str, Any]:
    """A line as it was read, if it is one that :func:`journal_line` could have made.

    Raises:
        KeyError, TypeError, ValueError: says what is wrong with it.
    """
    from erfscope.results.json_values import from_json
    from erfscope.storage.json_format import SCHEMA, result_from_json

    line = from_json(entry, JournalLine, "a line")
    if line.schema != SCHEMA:
        raise ValueError(f"the results of {line.label[:40]!r} are of the schema {line.schema[:40]!r}")
    for result in line.results:
        # Maps are read when all models are finished.
        stored = result_from_json({**result, "map_file": None})
        if result["map_file"] not in (None, f"{stored.id}.npz"):
            raise ValueError(f"the map file {str(result['map_file'])[:40]!r} is not that of {stored.id[:40]!r}")
    checked: dict[str, Any] = entry
    return checked


def is_worth_another_try(entry: Mapping[str, Any], *, retry_failed: bool = False) -> bool:
    """Whether a model has failed and is to be measured again, as :func:`erfscope.engine.resume.is_worth_another_try`
    says of its results.

    Args:
        entry: A line of the journal.
        retry_failed: Whether that was asked for whoever is to blame.
    """
    failures = [result["error_cause"] for result in entry["results"] if result["status"] == "error"]
    return any(retry_failed or cause != MODEL for cause in failures)
