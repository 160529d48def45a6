"""Tables of results as text: CSV and tab-separated here, Markdown and LaTeX by their own writers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.unit import size_text
from erfscope.measures import MEASURES
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.view.extras import halo_cell
from erfscope.view.grids import csv_grid, markdown_grid, markdown_text, plain_grid
from erfscope.view.latex import latex
from erfscope.view.paper import head, paper_table
from erfscope.view.report_view import ReportView, Row, report_view


def markdown(view: ReportView) -> str:
    """A report as a table in Markdown."""
    table = paper_table(view)
    lines = [["model", *(head(c.name) + (f" ({c.unit})" if c.unit else "") for c in table.columns)]]
    for row, cells, mark in zip(view.rows, table.rows, table.marks, strict=True):
        label = markdown_text(row.result.label) + (f" ({mark})" if mark else "")
        lines.append([label, *(markdown_text(str(cell)) for cell in cells)])
    terms = "; ".join(f"{head(name)}: {meaning}" for name, meaning in table.terms)
    below = [
        markdown_text(table.caption + (f" {terms}." if terms else "")),
        *(f"({letter}) {markdown_text(text)}" for letter, text in table.notes),
    ]
    return markdown_grid(lines, left=[True, *(c.kind == "condition" for c in table.columns)]) + "".join(
        f"\n{text}\n" for text in below
    )


#: Columns that say under which conditions a row's numbers hold.
CONDITIONS = ("label", "weights", "input", "layer", "unit", "convention", "status")
#: Columns of a CSV that say what the layer and the model are.
STRUCTURE = (
    "stride_px",
    "trf_px",
    "trf_local_px",
    "global_by",
    "trf_exact",
    "parameters",
    "gmacs",
    "halo_px",
    "halo_alignment_px",
)


def text_table(report: Report, measures: Sequence[str], *, compared: Sequence[str] = (), format: str) -> str:
    """A table as text.

    Args:
        report: The results, a row each.
        measures: Columns after the conditions.
        compared: The measures that have columns of differences in CSV.
        format: ``"csv"`` (full precision, a column per standard error), ``"markdown"``, ``"latex"`` (booktabs) or
            ``"plain"`` (tabs).

    Raises:
        ErfscopeError: unknown format or measure.
    """
    writers = {"latex": latex, "markdown": markdown, "plain": _plain}
    if format not in ("csv", *writers):
        raise unknown("table format", format, ["csv", *writers])
    for name in measures:
        if name not in MEASURES:
            raise unknown("measure", name, MEASURES, limit=40)
    if format == "csv":
        return _csv(report_view(report, measures, compared=compared), measures, compared if len(report) > 1 else ())
    return writers[format](report_view(report, measures))


def dataframe(table: str) -> Any:
    """A table in CSV as a pandas data frame; conditions stay text, whatever they look like.

    Raises:
        ErfscopeError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ErfscopeError(
            "a data frame needs pandas, which is not installed: pip install pandas, or take table(format='csv')"
        ) from error
    frame = pandas.read_csv(
        io.StringIO(table), dtype=dict.fromkeys(CONDITIONS, str), keep_default_na=False, na_values=[""]
    )
    # Some releases read the last digit of a number otherwise.
    texts = pandas.read_csv(io.StringIO(table), dtype=str, keep_default_na=False)
    for name in frame.select_dtypes("float"):
        frame[name] = [float(text or "nan") for text in texts[name]]
    return frame


def _conditions(row: Row) -> list[str]:
    return [row.result.label, *(row.cells[name].sort for name in CONDITIONS[1:-1]), row.result.status]


def _plain(view: ReportView) -> str:
    names = [column.name for column in view.columns if column.kind != "condition" or column.name == "sizes"]
    lines = [[*CONDITIONS, *names]]
    lines += [[*_conditions(row), *(str(row.cells[name]) for name in names)] for row in view.rows]
    return plain_grid(lines)


def _csv(view: ReportView, measures: Sequence[str], compared: Sequence[str]) -> str:
    numbers = [column for name in measures for column in (name, f"{name}_se")]
    changes = [column for name in compared for column in (f"{name}_diff", f"{name}_diff_se")]
    fixed = [*CONDITIONS, "wrt", "insert", "alpha", *STRUCTURE, "in_plane"]
    lines: list[list[object]] = [[*fixed, *numbers, *changes, "findings", "error"]]
    for row in view.rows:
        result = row.result
        items: list[object] = [*_conditions(row), result.wrt, result.insert, result.alpha, *_structure(result)]
        items += [str(result.is_in_plane).lower() if result.measures else None]
        for cell in [row.cells[name] for name in measures] + [row.cells[name].difference for name in compared]:
            items += [None, None] if cell is None else [cell.value, cell.error and cell.error.value]
        items += [" ".join(dict.fromkeys(finding.code for finding in result.findings)), result.error]
        lines.append(items)
    return csv_grid(lines)


def _structure(result: Result) -> Iterator[object]:
    """Stride, TRF, cost and halo of one result, for CSV."""
    unit, trf, cost, halo = result.unit, result.trf, result.cost, result.halo
    yield None if unit is None else size_text([f"{side:g}" for side in unit.stride_px])
    yield from (
        (None,) * 4
        if trf is None
        else (size_text(trf.size_px), size_text(trf.local_size_px), trf.global_by, str(trf.exact).lower())
    )
    yield from (None, None) if cost is None else (cost.parameters, cost.gmacs)
    yield from (None, None) if halo is None else (halo_cell(halo), size_text(halo.alignment_px))
