"""Stored results of older versions of the report's schema, made into those of the present one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from erfscope.errors import ErfscopeError
from erfscope.measures.ratios import sides_of
from erfscope.storage.json_format import SCHEMA, trf_from_json

FAMILY, _, PRESENT = SCHEMA.rpartition("/")
#: Codes of findings that have another name now.
RENAMED = {"skip_dominated": "own_cell_dominated"}


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
        raise ErfscopeError(f"{what} is of schema {schema}, and this erfscope reads up to {SCHEMA}; install a newer erfscope")
    return int(version)


def upgrade(entry: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A stored result as the present version of the schema has it.

    Version 1 gave radii as 2 r / side, and compared with the part of the theoretical field inside the reference: both ratios are
    computed anew from the value and the sides.

    Args:
        entry: An item of ``results``.
        version: Of the schema that it was stored under.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the entry is not of that version.
    """
    found = {**entry, "error": _without_label(entry["error"], entry["label"]), "input": _described(entry["input"])}
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
        found["warnings"] = [_renamed(finding) for finding in entry["warnings"]]
    return found


def _without_label(error: str | None, label: str) -> str | None:
    """The reason of a failure. It began with the model's label where that was the subject of the sentence."""
    return None if error is None else error.removeprefix(f"{label}: ").removeprefix(f"{label} ")


def _described(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was shown, with the fields for what only its lines in words said: what makes the pixels, what scales them, what is counted."""
    if "described" in shown:
        return shown
    transform, text = shown["transform"], shown["text"]
    resize, comma, scale = transform.partition(";")[0].partition(", mean ")
    is_file = shown["source"] == "image" and shown["n_images"] == 1 and not text[:1].isdigit()
    described = "tensor" if shown["source"] == "tensor" else "file" if is_file else "count"
    return {**shown, "resize": resize, "scale": f"mean {scale}" if comma else "", "described": described}


def _renamed(finding: Mapping[str, Any]) -> dict[str, Any]:
    """A finding under its present code; its text began with the code."""
    code = finding["code"]
    new = RENAMED.get(code, code)
    return {**finding, "code": new, "text": finding["text"].replace(f"{code}: ", f"{new}: ", 1)}
