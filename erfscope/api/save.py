"""Writing a report: a folder, or one file whose suffix decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from erfscope.adapter import Weights
from erfscope.errors import ErfscopeError
from erfscope.geometry.input_size import is_auto
from erfscope.geometry.unit import is_every_unit, resolve_units
from erfscope.maps.erf_map import ErfMap
from erfscope.measures import MEASURES, MeasureValue
from erfscope.options.keywords import DEFAULTS, alphas, settings_of, values_of, words
from erfscope.results.positions import Positions
from erfscope.results.report import Report
from erfscope.results.result import InputRecord, Result, UnitRecord
from erfscope.storage import files
from erfscope.storage.files import FIGURES, TABLES, map_bytes, report_bytes, save_directory, write_bytes

SUFFIXES = (".html", ".json", *TABLES, *FIGURES, ".npz")
#: The page in the folder of a report.
PAGE = "index.html"
#: Side of the map that units are looked up in before a model is built: larger than a layer's, so that those of a grid
#: lie apart.
SIDE = 1 << 16
#: Stands for a map, or an image.
ONE = np.ones((1, 1))


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`Report.save` could not write; called before anything is measured.

    Raises:
        ErfscopeError: the target exists, its folder does not, or its suffix is unknown.
    """
    files.check_output(path, SUFFIXES, force=force)


def check_figure(
    models: Mapping[str, Any] | Sequence[Any], options: Mapping[str, Any], *, kind: str | None, width: str | None
) -> None:
    """Refuse a figure that cannot be drawn of what these options ask for; called before anything is measured.

    The kind is tried on one row for each result that is asked for, with numbers that stand for those to be measured. A
    model that fails, or a layer of few units, can still make a figure impossible that passes here.

    Args:
        models: As for :func:`erfscope.compare`.
        options: Likewise.
        kind: Of the figure; the default one if None.
        width: As for :meth:`Report.figure`.

    Raises:
        ErfscopeError: the kind needs more or other results, or a wider sheet.
    """
    from erfscope.figures import default_kind, refuse_unfit

    rows = list(_expected(models, options))
    refuse_unfit(rows, kind or default_kind(rows), width=width)


def _expected(models: Mapping[str, Any] | Sequence[Any], options: Mapping[str, Any]) -> Iterator[Result]:
    """The rows that a comparison will have, those of stored reports as they are; numbers that only measuring shows are
    made up."""
    from erfscope.api.checkpoints import checkpoints
    from erfscope.api.comparison import entries_of

    entries: Sequence[tuple[str, Any]] = (
        entries_of(models) if options.get("of") is None else checkpoints(models, options["of"])
    )
    sizes = [(1, 1), (2, 2)] if is_auto(options.get("input_size")) else values_of(options, "input_size")
    layers = words(options.get("layer"))
    layers = ["first stage", "last stage"] if layers == ["stages"] else [layer or "default" for layer in layers]
    unit, middle = options.get("unit", DEFAULTS["unit"]), (SIDE // 2, SIDE // 2)
    units = [middle] if is_every_unit(unit) else [each.index for each in resolve_units(unit, (SIDE, SIDE), middle)]
    named = settings_of(options, convention="jacobian").measure_names()  # type: ignore[arg-type]
    settings = list(
        product(sizes, *(values_of(options, name) for name in ("weights", "convention", "wrt")), layers, units)
    )
    blocks = (
        [(None, None), *(("block", alpha) for alpha in alphas(options.get("alpha")))]
        if options.get("insert")
        else [(None, None)]
    )
    for label, model in entries:
        if isinstance(model, Report):
            yield from model.results
            continue
        for (number, (size, weights, convention, wrt, layer, index)), (insert, alpha) in product(
            enumerate(settings), blocks
        ):
            host = f"{label} {number}"
            yield Result(
                id=host if insert is None else f"{host} {alpha}",
                label=f"{label} {insert or ''}" + ("" if alpha is None else f", alpha {alpha:g}"),
                model=label,
                status="ok",
                weights=Weights(source=weights),
                insert=insert,
                alpha=alpha,
                step=getattr(model, "step", None),
                host=host if insert else None,
                input=InputRecord(size=size or (1, 1), source="none", n_images=1, n_draws=1),
                layer=layer,
                wrt=wrt,
                unit=UnitRecord(index=index, center_px=index, center_exact=True, stride_px=(1.0, 1.0)),
                convention=str(convention),
                method="gradient",
                scale="amplitude",
                measures={name: MeasureValue(value=1.0, kind=MEASURES[name].kind) for name in named},
                map=ErfMap(values=ONE, center_px=(0.0, 0.0), stride_px=(1.0, 1.0)),
                positions=Positions(r50=ONE, context_r50=ONE, inside=ONE > 0, passes=1)
                if is_every_unit(unit)
                else None,
                picture=ONE,
            )


def save(report: Report, path: str | Path, *, force: bool, figure: str | None, drawn: bool, **style: Any) -> None:
    """Write a report; see :meth:`erfscope.Report.save`."""
    check_output(path, force=force)
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix in FIGURES:
        from erfscope.figures import figure_bytes

        shown = report.figure(kind=figure, **style)
        write_bytes(target, figure_bytes(shown, suffix), force=force)
    elif suffix in TABLES:
        write_bytes(target, report.table(format=TABLES[suffix]).encode(), force=force)
    elif suffix == ".html":
        from erfscope.page import html

        write_bytes(target, html(report, scale=style["scale"]).encode(), force=force)
    elif suffix == ".json":
        write_bytes(target, report_bytes(report.to_json()), force=force)
    elif suffix == ".npz":
        write_bytes(target, map_bytes(list(report.results)), force=force)
    elif not drawn:
        save_directory(report.to_json, list(report.results), target, others=[], force=force)
    else:
        from erfscope.figures import folder_figures
        from erfscope.page import html

        others = [(PAGE, html(report, scale=style["scale"]).encode())]
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
