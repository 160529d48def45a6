"""Studies of real runs that the package ships, as ``kept/NAME.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from erfscope.errors import ErfscopeError
from erfscope.studies.result import StudyResult
from erfscope.studies.stored_picture import decoded, tuples
from erfscope.studies.study import Claim, Column, Row

#: One NAME.json per study, written by ``erfscope study NAME -o erfscope/studies/kept/NAME.json --force``.
FOLDER = Path(__file__).parent / "kept"


def kept_study(name: str) -> StudyResult:
    """Read the study of a real run that the package ships; nothing is computed.

    Args:
        name: Name of a study.

    Raises:
        ErfscopeError: the package ships no run of it.
    """
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        raise ErfscopeError(f"erfscope keeps no run of a study {name!r}; run it")
    found = json.loads(file.read_text(encoding="utf-8"))
    table, settings = found["table"], found["settings"]
    rows = [Row(**{key: tuples(value) for key, value in row.items()}, maps={}) for row in found["rows"]]
    return StudyResult(
        **{key: found[key] for key in ("study", "seconds", "environment")},
        **{key: settings[key] for key in ("seed", "effort", "data")},
        columns=tuple(_column(given, rows) for given in table["columns"]),
        section=table["section"],
        rows=rows,
        claims=[Claim(**each) for each in found["claims"]],
        picture=decoded(found["picture"]),
    )


def _column(given: dict[str, Any], rows: list[Row]) -> Column:
    cells = {row.name: text for row, text in zip(rows, given.pop("cells"), strict=True)}
    return Column(given.pop("title"), lambda row: cells[row.name], **given)
