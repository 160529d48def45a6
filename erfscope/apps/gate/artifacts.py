"""Maps and figures of checks that do not pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erfscope.apps.gate.verdict import CheckReport, Verdict
from erfscope.core import ErfscopeError
from erfscope.show import RADII, lengths_text, plot, sides_text, write


def write_artifacts(report: CheckReport, folder: Path) -> list[Path]:
    """Write ``check.json``, and a figure and the map of every check that did not pass.

    A baseline holds numbers and no maps: what is drawn is the obtained map, with its own r50 and r90 rings and the
        baseline's dotted, as is its theoretical receptive field (TRF) where that changed.

    Args:
        report: What was found.
        folder: Made where it does not exist; files of the same names are replaced.

    Returns:
        The files written.

    Raises:
        ErfscopeError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ErfscopeError(
            f"cannot make the folder {folder}: {error.strerror or error}; name another with --artifacts"
        ) from error
    write(folder / "check.json", report.to_json(), force=True)
    files = [folder / "check.json"]
    for verdict in report:
        if not verdict.ok and verdict.result is not None and verdict.result.map is not None:
            name = _free(verdict.name, files)
            files += [folder / f"{name}.png", folder / f"{name}.npz"]
            write(files[-2], _figure(verdict), force=True)
            verdict.result.save(files[-1], force=True)
    return files


def _free(check: str, taken: Sequence[Path]) -> str:
    """The name of the files of a check: two checks may differ in characters that no file name has."""
    name = (re.sub(r"[^A-Za-z0-9._]+", "_", check).strip("._") or "x")[:150]
    known = {file.stem.lower() for file in taken}
    return next(
        each
        for each in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
        if each.lower() not in known
    )


def _figure(verdict: Verdict) -> Any:
    """The obtained map with the baseline's rings."""
    assert verdict.result is not None
    entry = verdict.expected if verdict.measures else None
    stored = {} if entry is None else {name: entry.measures.get(name) for name in RADII}
    expected = {name: value.value for name, value in stored.items() if value is not None and value.value is not None}
    drawn = [f"{name} {radius:.4g} {lengths_text(verdict.result)}" for name, radius in expected.items()]
    field = _changed_field(verdict)
    drawn += [] if field is None else [f"TRF {sides_text(verdict.result.axes, field)}"]
    words = f"dotted, green: expected {', '.join(drawn)}" if drawn else "nothing expected that could be drawn"
    return plot.panel_with_expected(
        verdict.result, expected, heading=verdict.shown, words=[verdict.cause, words], field=field
    )


def _changed_field(verdict: Verdict) -> tuple[int, ...] | None:
    """Sides of the expected theoretical receptive field (TRF) where the obtained one has others; None where it cannot
    be drawn: it covers the whole reference, or is no rectangle."""
    entry, trf = verdict.expected, None if verdict.result is None else verdict.result.trf
    found = None if entry is None else entry.structure
    if found is None or trf is None or found.global_by or len(found.trf_px) != 2 or found.trf_px == trf.size_px:
        return None
    return found.trf_px
