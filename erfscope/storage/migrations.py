"""Stored results of older versions of the report's schema, made into those of the present one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from erfscope.errors import ErfscopeError
from erfscope.finding import SWITCHED_ON
from erfscope.measures.ratios import sides_of
from erfscope.stimuli import KINDS
from erfscope.storage.json_format import SCHEMA, trf_from_json

FAMILY, _, PRESENT = SCHEMA.rpartition("/")
#: Codes of findings that have another name now.
RENAMED = {"skip_dominated": "own_cell_dominated"}
_ZERO_BRANCHES = (
    "(branches that are zero at initialisation were switched on|zero-initialised residual branch(es were| was) set"
    " to 1)"
)
#: Texts that read otherwise now, most special first. Shards are told apart by theirs: one of before must still go with
#: one of today. As much stands around each that no file that a text names is taken for one.
REWORDED: tuple[tuple[re.Pattern[str], str], ...] = (
    *(
        (
            re.compile(rf"\b(\d+) synthetic {kind} picture(s?) \((?=version \d+, seed )"),
            rf"\1 synthetic image\2 ({known.words}, ",
        )
        for kind, known in KINDS.items()
    ),
    (re.compile(rf"^1 {_ZERO_BRANCHES}$"), f"1 residual branch starts at zero; {SWITCHED_ON}"),
    (re.compile(rf"^(\d+) {_ZERO_BRANCHES}$"), rf"\1 residual branches start at zero; {SWITCHED_ON}"),
    (
        re.compile(r" is the identity at its initialisation: \d+ weights? (was|were) set to 1 or drawn anew$"),
        " starts without effect; re-initialised",
    ),
    (
        re.compile(r" is the identity at its initialisation, so that it changes nothing$"),
        " starts without effect; it changes nothing",
    ),
    (re.compile(r"^computed without the cone: "), "cropping disabled: "),
    (re.compile(r"^(skip|own_cell)_dominated: (?=\d+% of the ERF is the unit's own cell; )"), ""),
    (re.compile(r"\buses numbers that may depend on the position$"), "may depend on the position"),
    (
        re.compile(
            r" cannot run without numbers \((.*)\): its fields come from one forward pass on (\S+) with random pixels,"
            r" and hold for"
        ),
        (
            r" has data-dependent control flow; traced once with random input on \2 (\1): its theoretical receptive"
            r" fields (TRFs) hold for"
        ),
    ),
    (re.compile(r"\btheoretical field's area in-plane\b"), "in-plane area of the theoretical receptive field (TRF)"),
    (re.compile(r"\btheoretical field's area\b"), "area of the theoretical receptive field (TRF)"),
    (
        re.compile(
            r"\btheoretical field\b(?=: please report| is an upper bound: | (in-plane )?lies outside this input)"
        ),
        "theoretical receptive field (TRF)",
    ),
    (
        re.compile(r"^(\d+% of the .* lies outside) this input and shrinks the sizes$"),
        r"input too small: sizes are underestimates; \1",
    ),
    (re.compile(r"^(shard \d+/\d+, \d+) pictures of "), r"\1 images of "),
    (
        re.compile(
            r"^((stopped after|shard \d+/\d+ saw|a batch of|.* on) \d+( of \d+)?) pictures(?=; | did not fit|$)"
        ),
        r"\1 images",
    ),
    (re.compile(r"(?<=changes the map of the first )picture(?= by )|(?<=\(first )picture(?=\)$)"), "image"),
)


def version_of(schema: object, what: str) -> int:
    """The version of a report's schema.

    Args:
        schema: What the document says of itself.
        what: What to call the document in an error.

    Raises:
        ErfscopeError: it is no report, or of a later version than this erfscope's.
    """
    family, _, version = schema.rpartition("/") if isinstance(schema, str) else ("", "", "")
    if family != FAMILY or not (version.isascii() and version.isdigit() and len(version) < 9) or int(version) < 1:
        raise ErfscopeError(f"{what} is not an erfscope report: its schema is {str(schema)[:60]!r}, not {SCHEMA!r}")
    if int(version) > int(PRESENT):
        raise ErfscopeError(
            f"{what} is of schema {schema}, and this erfscope reads up to {SCHEMA}; install a newer erfscope"
        )
    return int(version)


def upgrade(entry: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A stored result as the present version of the schema has it.

    Version 1 gave radii as 2 r / side, and compared with the part of the TRF inside the reference: both ratios are
    computed anew from the value and the sides.

    Args:
        entry: An item of ``results``.
        version: Of the schema that it was stored under.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the entry is not of that version.
    """
    found = {**entry, "error": _without_label(entry["error"], entry["label"]), "input": _described(entry["input"])}
    found["input"] = _reworded(found["input"])
    found["warnings"] = [_reworded(finding) for finding in entry["warnings"]]
    if isinstance(entry.get("cone"), dict):
        # Comparisons of a cone with the whole pass are no longer made.
        found["cone"] = {
            name: value for name, value in entry["cone"].items() if name not in ("difference", "checked_on")
        }
    if entry.get("shard") is not None:
        found["shard"] = _reworded(entry["shard"])
    if version == 1:
        field = None if entry["trf"] is None else trf_from_json(entry["trf"])
        sides = None if field is None else sides_of(field.reference_px, field)
        found["measures"] = {
            name: {
                **measure,
                "of_input": None if sides is None else sides.of_input(measure["kind"], measure["value"]),
                "of_trf": None if sides is None else sides.of_trf(measure["kind"], measure["value"]),
            }
            for name, measure in entry["measures"].items()
        }
        found["in_plane"] = field is not None and len(field.reference_px) == 3
        found["warnings"] = [_renamed(finding) for finding in found["warnings"]]
    return found


def _without_label(error: str | None, label: str) -> str | None:
    """The reason of a failure. It began with the model's label where that was the subject of the sentence."""
    return None if error is None else error.removeprefix(f"{label}: ").removeprefix(f"{label} ")


def _described(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was shown, with the fields for what only its lines in words said: what makes the pixels, what scales them,
    what is counted."""
    if "described" in shown:
        return shown
    transform, text = shown["transform"], shown["text"]
    resize, comma, scale = transform.partition(";")[0].partition(", mean ")
    is_file = shown["source"] == "image" and shown["n_images"] == 1 and not text[:1].isdigit()
    described = "tensor" if shown["source"] == "tensor" else "file" if is_file else "count"
    return {**shown, "resize": resize, "scale": f"mean {scale}" if comma else "", "described": described}


def reworded(text: str) -> str:
    """A stored text as it reads now."""
    for pattern, replacement in REWORDED:
        text = pattern.sub(replacement, text)
    return text


def _reworded(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record with its text as it reads now; what holds no text is left to whoever reads it strictly."""
    text = entry.get("text")
    return {**entry, "text": reworded(text)} if isinstance(text, str) else entry


def _renamed(finding: Mapping[str, Any]) -> dict[str, Any]:
    """A finding under its present code."""
    return {**finding, "code": RENAMED.get(finding["code"], finding["code"])}
