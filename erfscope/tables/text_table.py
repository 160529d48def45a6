"""Tables of results as text, in every format."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.box import size_text
from erfscope.measures import MEASURES
from erfscope.results.pairing import Differences
from erfscope.results.result import Result
from erfscope.tables.columns import (
    CONDITIONS,
    FORMATS,
    IN_PLANE,
    STRUCTURE,
    cell,
    conditions,
    structure_columns,
    weights_text,
    with_error,
)


def text_table(
    results: Sequence[Result],
    measures: Sequence[str],
    *,
    format: str,
    differences: Sequence[Differences] = (),
    compared: Sequence[str] = (),
) -> str:
    """A table as text.

    Args:
        results: One row each.
        measures: Columns after the conditions.
        format: ``"csv"`` (full precision, a column per standard error), ``"markdown"``, ``"latex"`` (booktabs) or
            ``"plain"`` (tabs); see :func:`erfscope.tables.paper.paper_table` for those of a paper.
        differences: What each row differs by from its partner, for CSV; no such columns if left out.
        compared: The measures that have columns of differences.

    Raises:
        ErfscopeError: unknown format or measure.
    """
    if format not in FORMATS:
        raise unknown("table format", format, FORMATS)
    for name in measures:
        if name not in MEASURES:
            raise unknown("measure", name, MEASURES, limit=40)
    if format == "csv":
        return _csv(results, measures, differences, compared)
    if format == "plain":
        return _plain(results, measures)
    from erfscope.tables.paper import latex, markdown, paper_table

    return {"latex": latex, "markdown": markdown}[format](paper_table(results, measures))


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
    return pandas.read_csv(
        io.StringIO(table), dtype=dict.fromkeys(CONDITIONS, str), keep_default_na=False, na_values=[""]
    )


def _plain(results: Sequence[Result], measures: Sequence[str]) -> str:
    structure = structure_columns(results)
    some_in_plane = any(result.is_in_plane for result in results)
    lines = [[*CONDITIONS, *structure, *(["sizes"] if some_in_plane else []), *measures]]
    for result in results:
        cells = [cell(result, name) for name in measures]
        texts = [read(result) for read in structure.values()]
        texts += [IN_PLANE if result.is_in_plane else ""] if some_in_plane else []
        lines.append([*conditions(result).values(), *texts, *(with_error(c.value, c.se) for c in cells)])
    return "\n".join("\t".join(line) for line in lines) + "\n"


def _csv(
    results: Sequence[Result], measures: Sequence[str], differences: Sequence[Differences], compared: Sequence[str]
) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    numbers_of = (column for name in measures for column in (name, f"{name}_se"))
    changes_of = [column for name in compared if differences for column in (f"{name}_diff", f"{name}_diff_se")]
    writer.writerow([*CONDITIONS, "wrt", "insert", "alpha", *STRUCTURE, "in_plane", *numbers_of, *changes_of, "error"])
    for row_number, result in enumerate(results):
        numbers: list[object] = []
        for name in measures:
            entry = cell(result, name)
            numbers += ["" if entry.value is None else entry.value, "" if entry.se is None else entry.se]
        for name in compared if differences else ():
            numbers += ["" if item is None else item for item in differences[row_number].get(name, (None, None))]
        blocks = [result.insert or "", "" if result.alpha is None else result.alpha]
        flat = "" if not result.measures else str(result.is_in_plane).lower()
        row = [
            *(conditions(result) | {"weights": weights_text(result)}).values(),
            result.wrt,
            *blocks,
            *_structure(result),
            flat,
            *numbers,
            result.error or "",
        ]
        writer.writerow([_harmless(item) for item in row])
    return buffer.getvalue()


def _structure(result: Result) -> list[object]:
    """Stride, TRF and cost of one result, for CSV."""
    unit, trf, cost = result.unit, result.trf, result.cost
    return [
        "" if unit is None else size_text([f"{side:g}" for side in unit.stride_px]),
        "" if trf is None else size_text(trf.size_px),
        "" if trf is None else size_text(trf.local_size_px),
        "" if trf is None else trf.global_by or "",
        "" if trf is None else str(trf.exact).lower(),
        "" if cost is None else cost.parameters,
        "" if cost is None or cost.gmacs is None else cost.gmacs,
    ]


def _harmless(item: object) -> object:
    """Text that a spreadsheet would run as a formula is quoted."""
    return f"'{item}" if isinstance(item, str) and item.startswith(("=", "+", "-", "@")) else item
