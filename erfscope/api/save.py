"""Writing a report: a folder, or one file whose suffix decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from erfscope.errors import ErfscopeError
from erfscope.geometry.input_size import is_auto
from erfscope.geometry.unit import is_every_unit, resolve_units
from erfscope.options.keywords import DEFAULTS, values_of, words
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.storage import files
from erfscope.storage.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, map_bytes, report_bytes, save_directory, write_bytes

if TYPE_CHECKING:
    from erfscope.figures.style import Style

SUFFIXES = (".html", ".json", *TABLE_SUFFIXES, *FIGURE_SUFFIXES, ".npz")
#: The page in the folder of a report.
PAGE = "index.html"
#: Side of the map that units are looked up in before a model is built: larger than a layer's, so that those of a grid
#: lie apart.
SIDE = 1 << 16


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`Report.save` could not write; called before anything is measured.

    Raises:
        ErfscopeError: the target exists, its folder does not, or its suffix is unknown.
    """
    files.check_output(path, SUFFIXES, force=force)


def check_figure(
    models: Mapping[str, Any] | Sequence[Any], options: Mapping[str, Any], *, kind: str | None, width: str | None
) -> None:
    """Refuse a figure of which these options ask for too few values; called before anything is measured.

    What only measuring shows, and what stored results have, is seen when the figure is drawn.

    Args:
        models: As for :func:`erfscope.compare`.
        options: Likewise.
        kind: Of the figure; the default one if None.
        width: As for :meth:`Report.figure`.

    Raises:
        ErfscopeError: the kind needs several values of an option, or a wider sheet.
    """
    from erfscope.api.comparison import entries_of
    from erfscope.figures.kinds import refuse_unasked

    checkpoints = options.get("of") is not None
    unit, size = options.get("unit", DEFAULTS["unit"]), options.get("input_size")
    if not checkpoints and any(isinstance(model, Report) for _, model in entries_of(models)):
        return
    layers = words(options.get("layer"))
    several = {
        "layer": layers == ["stages"] or len(layers) > 1,
        "input_size": is_auto(size) or len(values_of(options, "input_size")) > 1,
        "unit": not is_every_unit(unit) and len(resolve_units(unit, (SIDE, SIDE), (SIDE // 2, SIDE // 2))) > 1,
        "every unit": is_every_unit(unit),
        # The model without its blocks is one more.
        "alpha": bool(options.get("insert")),
        "checkpoint": checkpoints,
    }
    refuse_unasked(kind or ("positions" if several["every unit"] else "panel"), several, width=width)


def save(
    report: Report, path: str | Path, *, force: bool, figure: str | None, drawn: bool, **style: Unpack[Style]
) -> None:
    """Write a report; see :meth:`erfscope.Report.save`."""
    check_output(path, force=force)
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix in FIGURE_SUFFIXES:
        from erfscope.figures.canvas import figure_bytes

        shown = report.figure(kind=figure, **style)
        write_bytes(target, figure_bytes(shown, suffix), force=force)
    elif suffix in TABLE_SUFFIXES:
        write_bytes(target, report.table(format=TABLE_SUFFIXES[suffix]).encode(), force=force)
    elif suffix == ".html":
        from erfscope.api.page import html

        write_bytes(target, html(report, **style).encode(), force=force)
    elif suffix == ".json":
        write_bytes(target, report_bytes(report.to_json()), force=force)
    elif suffix == ".npz":
        write_bytes(target, map_bytes(list(report.results)), force=force)
    elif not drawn:
        save_directory(report.to_json, list(report.results), target, others=[], force=force)
    else:
        from erfscope.api.page import html
        from erfscope.figures.draw import folder_figures

        others = [(PAGE, html(report, **style).encode())]
        # A figure that does not fit is no reason to lose everything else.
        misfit = None
        try:
            others += folder_figures(report.results, kind=figure, **style)
        except ErfscopeError as error:
            misfit = error
            others += folder_figures(report.results, **style)
        save_directory(report.to_json, list(report.results), target, others=others, force=force)
        if misfit is not None:
            raise misfit


def save_result(result: Result, path: str | Path, **options: Any) -> None:
    """Write one result; see :meth:`erfscope.Result.save`."""
    Report(results=(result,)).save(path, **options)
