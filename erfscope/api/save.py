"""Writing a report: a folder, or one file whose suffix decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from erfscope.errors import ErfscopeError
from erfscope.geometry.unit import UnitWord, is_every_unit, resolve_units
from erfscope.geometry.unit_kind import kind_of
from erfscope.options.request import Request
from erfscope.results import merge as merging
from erfscope.results.figure_style import Style
from erfscope.results.report import Report
from erfscope.storage.files import map_bytes, read, report_bytes, save_directory
from erfscope.storage.writing import FORMATS, check_output, is_folder, write_bytes

#: The page in the folder of a report.
PAGE = "index.html"
#: Side of the map that units are looked up in before a model is built: larger than a layer's, so that those of a grid
#: lie apart.
SIDE = 1 << 16


def check_figure(
    models: Mapping[str, Any] | Sequence[Any],
    *,
    kind: str | None,
    width: str | None,
    of: str | None = None,
    **options: Any,
) -> None:
    """Refuse a figure of which these options ask for too few values; called before anything is measured.

    What only measuring shows, and what stored results have, is seen when the figure is drawn.

    Args:
        models: As for :func:`erfscope.compare`.
        kind: Of the figure; the default one if None.
        width: As for :meth:`Report.figure`.
        of: As for :func:`erfscope.compare`.
        **options: Likewise.

    Raises:
        ErfscopeError: the kind needs several values of an option, or a wider sheet.
    """
    from erfscope.api.entries import entries_of, with_own
    from erfscope.figures.kinds import refuse_unasked

    entries, named = ([], options) if of is not None else with_own(entries_of(models), options)
    if any(isinstance(model, Report) for _, model in entries):
        return
    request = Request.parse(named, may_grow=True, of_each=True)
    several, unit = request.several(), request.settings.unit
    is_every = is_every_unit(unit)
    found = {
        "layer": "layer" in several,
        "input_size": request.is_growing or "input_size" in several,
        "unit": not is_every and _names_several(unit),
        "every unit": is_every,
        # The model without its blocks is one more.
        "alpha": bool(request.insert) and request.alphas != (None,),
        "checkpoint": of is not None,
    }
    refuse_unasked(kind or ("positions" if is_every else "panel"), found, width=width)


def _names_several(unit: UnitWord) -> bool:
    """Whether a word means several units of a layer."""
    kind, names = kind_of(unit)
    if kind:
        return len(names) > 1
    return len(resolve_units(unit, (SIDE, SIDE), (SIDE // 2, SIDE // 2), nearest=_cells)) > 1


def _cells(place: Sequence[float]) -> tuple[int, ...]:
    return tuple(map(int, place))


def save(
    report: Report, path: str | Path, *, force: bool, figure: str | None, drawn: bool, **style: Unpack[Style]
) -> None:
    """Write a report; see :meth:`erfscope.Report.save`."""
    check_output(path, force=force)
    target = Path(path)
    if is_folder(path):
        others, misfit = _drawn(report, figure, **style) if drawn else ([], None)
        save_directory(report.to_json, list(report.results), target, others=others, force=force)
        if misfit is not None:
            raise misfit
    else:
        write_bytes(target, _content(report, target.suffix.lower(), figure, **style), force=force)


def _content(report: Report, suffix: str, figure: str | None, **style: Unpack[Style]) -> bytes:
    """The one file that a report is written to."""
    kind = FORMATS[suffix]
    if kind.content == "page":
        from erfscope.api.page import html

        return html(report, **style).encode()
    if kind.content == "figure":
        from erfscope.figures.canvas import figure_bytes

        return figure_bytes(report.figure(kind=figure, **style), suffix)  # type: ignore[arg-type]
    if kind.content == "table":
        return report.table(format=kind.table).encode()  # type: ignore[arg-type]
    if kind.content == "maps":
        return map_bytes(list(report.results))
    return report_bytes(report.to_json())


def _drawn(
    report: Report, figure: str | None, **style: Unpack[Style]
) -> tuple[list[tuple[str, bytes]], ErfscopeError | None]:
    """The page and the figures of a folder, and why the kind of figure that was asked for is not among them: no reason
    to lose everything else."""
    from erfscope.api.page import html
    from erfscope.figures.draw import folder_figures

    page = (PAGE, html(report, in_folder=True, **style).encode())
    try:
        return [page, *folder_figures(report.results, kind=figure, **style)], None
    except ErfscopeError as error:
        return [page, *folder_figures(report.results, **style)], error


def merge(shards: Sequence[str | Path | Report]) -> Report:
    """The union of the shards of one run: its numbers up to rounding.

    Args:
        shards: Folders that ``--shard i/n -o DIR`` (or ``shard="i/n"`` and :meth:`Report.save`) wrote, or the reports
            themselves, in any order.

    Returns:
        The report of the whole run: the one that a single process would have made, to rounding in the last places of
            float64.

    Raises:
        ErfscopeError: not a report, or one that is no shard.
        MeasurementError: a shard is missing or there twice, or shards come from different runs.
    """
    return merging.merge([shard if isinstance(shard, Report) else read(shard) for shard in shards])
