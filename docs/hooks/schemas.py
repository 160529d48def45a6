"""Write the JSON schemas of reports and baselines from the types that they are read by: ``python
docs/hooks/schemas.py``."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from field_comments import comment_above

from erfscope.apps.gate import baseline
from erfscope.apps.gate import baseline as entry
from erfscope.core.answer import result
from erfscope.core.answer.maps import probe, trust
from erfscope.core.answer.storage import documents, json_format

FOLDER = Path(json_format.__file__).parent / "schema"
POSITIONS = "Positions are (row, col), origin top-left, pixel centres at integers."
REPORT = f"{POSITIONS} Boxes hold [first, last] pixel, inclusive, per axis, unclipped. Non-finite numbers are null."
BASELINE = (
    f"What `erfscope check` compares with. {POSITIONS} An entry without measures was written with --trf-only, and its"
    " protocol holds the structural part alone."
)
#: Fields that are not there in every case. All others are always written.
OPTIONAL: dict[str, set[str]] = {
    "StoredMeasure": {"image_px"},
    "StoredResult": {"masses", "timing"},
    "InputRecord": {"axes"},
    "Protocol": {*entry.Protocol.__annotations__} - {*entry.BaselineQuestion.__annotations__, *entry.ASKED},
    "BaselineEntry": {"more"},
    "Structure": {"operations"},
    "UsedWeights": {"source", "sha256"},
}
#: Fields that are not stored: a finding says why a centre is not exact.
LEFT_OUT = {("Trf", "center_inexact_reason"), ("BaselineEntry", "unusable")}
#: What annotations cannot say: by class and field, what takes the place of what they do say.
INSTEAD: dict[tuple[str, str], dict[str, Any]] = {
    ("StoredReport", "schema"): {"const": json_format.SCHEMA},
    ("StoredReport", "results"): {"type": "array", "items": {"$ref": "#/$defs/StoredResult"}},
    ("StoredResult", "differences"): {"anyOf": [{"$ref": "#/$defs/Differences"}, {"type": "null"}]},
    ("StoredBaseline", "schema"): {"const": baseline.SCHEMA},
    ("StoredBaseline", "entries"): {"type": "object", "additionalProperties": {"$ref": "#/$defs/BaselineEntry"}},
    ("BaselineEntry", "structure"): {"$ref": "#/$defs/Structure"},
    ("BaselineEntry", "protocol"): {"$ref": "#/$defs/Protocol"},
}
#: What the comments above fields do not say.
ABOUT = {
    "in_plane": (
        "Whether sizes and shares are of a clip's map summed over time, distances being over rows and columns."
    ),
    "differences": (
        "Measures minus those of the result whose id is `to`, with the standard error of the difference over the same"
        " images."
    ),
    "map_file": "Name of the file beside the report that holds the map, and the sums of a run that is not whole.",
    "map_sha256": "Of the content of that file, in hexadecimal.",
    "shard": "Null for a whole run.",
}
DIFFERENCES = {
    "type": "object",
    "properties": {"to": {"type": "string", "description": "Id of the other result."}},
    "required": ["to"],
    "additionalProperties": {"$ref": "#/$defs/StoredDifference"},
}


def schemas() -> dict[str, str]:
    """The text of every schema, by the name of its file."""
    classes = {**vars(documents), **vars(json_format), **vars(result), **vars(trust), **vars(probe)}
    report = _components([documents.StoredReport, documents.StoredResult, documents.StoredDifference], classes)
    report["Trf"]["properties"]["global"] = {
        "type": "boolean",
        "description": "Whether a global operation makes it the whole reference.",
    }
    report["Trf"]["required"] = sorted({*report["Trf"]["required"], "global"})
    report["Differences"] = DIFFERENCES
    checks = _components(
        [baseline.StoredBaseline, entry.BaselineEntry, entry.Protocol], {**vars(baseline), **vars(entry)}
    )
    return {
        "report-1.json": _document("StoredReport", report, title="erfscope report, version 1", description=REPORT),
        "baseline-1.json": _document(
            "StoredBaseline", checks, title="erfscope baseline, version 1", description=BASELINE
        ),
    }


def _components(kinds: list[type], classes: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of every class that is met, strict, and with the comments above its fields."""
    _, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for name, schema in found.items():
        comments = _comments(classes[name])
        schema["description"] = " ".join(inspect.getdoc(classes[name]).split("\n\n")[0].split())
        schema["properties"] = {
            field: own for field, own in schema["properties"].items() if (name, field) not in LEFT_OUT
        }
        for field, own in schema["properties"].items():
            for key in INSTEAD.get((name, field), ()) and list(own):
                del own[key]
            own.pop("default", None)
            # Which of them comes first depends on the version of msgspec.
            own |= (
                {"anyOf": sorted(own["anyOf"], key=lambda kind: kind.get("type") == "null")} if "anyOf" in own else {}
            )
            own |= {
                **INSTEAD.get((name, field), {}),
                **({"description": comments[field]} if comments.get(field) else {}),
            }
        schema["required"] = sorted({*schema["properties"]} - OPTIONAL.get(name, set()))
        schema["additionalProperties"] = False
    return found


def _comments(kind: type) -> dict[str, str]:
    """What the comment above each field says, by its name in JSON."""
    if kind is documents.StoredResult:
        return {**_comments(result.Result), **ABOUT}
    lines = inspect.getsource(kind).splitlines()
    fields = [(number, found[1]) for number, line in enumerate(lines, 1) if (found := re.match(r"    (\w+): ", line))]
    names = (
        {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        if issubclass(kind, msgspec.Struct)
        else {}
    )
    return {names.get(name, name): re.sub(r"\bNone\b", "null", comment_above(lines, number)) for number, name in fields}


def _document(root: str, components: Mapping[str, Any], **about: str) -> str:
    others = {name: schema for name, schema in sorted(components.items()) if name != root}
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **components[root], **about, "$defs": others}
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    for name, text in schemas().items():
        (FOLDER / name).write_text(text)
