"""The table of all results: a row each, numbers with their errors and paired differences, failures with their
reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.measures import MEASURES
from erfscope.page.numbers import Number, Reading, number_at, reading_at
from erfscope.results.pairing import COMPARED
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.tables.columns import IN_PLANE, UNIT_SIGNS, cells_text, conditions, structure_columns
from erfscope.tables.meanings import STRUCTURE

#: Up to this many measures stand in the table; of more, those that a comparison shows.
FEW = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column's head."""

    name: str
    unit: str = ""
    #: The definition, shown on the head.
    about: str = ""
    numeric: bool = True
    #: Whether it is about the layer or the model, and not a measure.
    structure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One cell: words, a number, or a number with its error and its difference to another result."""

    text: str = ""
    number: Number | None = None
    reading: Reading | None = None
    difference: Reading | None = None
    #: The unit of the number, where the rows of a column do not share one.
    unit: str = ""
    #: What the column is sorted by; "" where there is nothing, which comes last.
    sort: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One result."""

    index: int
    label: str
    #: Whose numbers are taken off in the second line: "host", "first" or a label; "" if there is none.
    minus: str
    status: str
    error: str
    entries: tuple[TableCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Heads and rows."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    #: Whether any row has differences.
    paired: bool


def chosen_measures(results: Sequence[Result]) -> list[str]:
    """The measures that the table shows: those that a comparison shows, or all where there are few."""
    present = [name for name in MEASURES if any(name in result.measures for result in results)]
    return present if len(present) <= FEW else [name for name in COMPARED if name in present]


def about(name: str) -> str:
    """A measure's definition and source."""
    measure = MEASURES[name]
    return f"{measure.formula}  [{measure.source}]"


def partner_of(report: Report, index: int) -> int | None:
    """Position of the result that another is compared with; None if there is none."""
    other = report.compared_with(report[index])
    return next((i for i, each in enumerate(report) if each is other), None)


def result_table(document: Mapping[str, Any], report: Report, labels: Sequence[str]) -> ResultTable:
    """The table of a report.

    Args:
        document: The report's JSON: every number is taken from there.
        report: The report.
        labels: What each result is called.
    """
    results = report.results
    told = [
        name
        for name in list(conditions(results[0]))[1:]
        if name != "status" and len({conditions(r)[name] for r in results if r.ok}) > 1
    ]
    structure = structure_columns(results)
    names = chosen_measures(results)
    columns = [Column(name=name, numeric=False) for name in told]
    units = {name: _units(document, name) for name in names}
    columns += [
        Column(name=name, unit=units[name][0] if len(units[name]) == 1 else "", about=about(name)) for name in names
    ]
    lengths = list(dict.fromkeys(cells_text(result) for result in results if result.trf is not None))
    lengths = lengths if len(lengths) == 1 else [""]
    columns += [
        Column(
            name=_HEADS.get(name, name),
            unit=lengths[0] if name in _LENGTHS else "",
            about=STRUCTURE[name],
            structure=True,
        )
        for name in structure
    ]
    rows = []
    for index, result in enumerate(results):
        entries = [TableCell(text=conditions(result)[name], sort=conditions(result)[name]) for name in told]
        entries += [_measure(document, index, name, mixed=len(units[name]) > 1) for name in names]
        entries += [_structure(document, index, name, result, text) for name, text in structure.items()]
        rows.append(_row(document, report, index, labels, entries))
    return ResultTable(columns=tuple(columns), rows=tuple(rows), paired=any(row.minus for row in rows))


def _row(
    document: Mapping[str, Any], report: Report, index: int, labels: Sequence[str], entries: Sequence[TableCell]
) -> TableRow:
    result, differs = report[index], document["results"][index]["differences"]
    partner = partner_of(report, index) if differs else None
    return TableRow(
        index=index,
        label=labels[index],
        minus=""
        if partner is None
        else "host"
        if result.host == report[partner].id
        else labels[partner]
        if partner
        else "first",
        status="" if result.ok else result.status,
        error=result.error or "",
        entries=tuple(entries),
    )


def _measure(document: Mapping[str, Any], index: int, name: str, *, mixed: bool) -> TableCell:
    """One measure; where a column mixes pixels and cells of inner maps it says which, and is sorted by image pixels."""
    result = document["results"][index]
    if name not in result["measures"]:
        return TableCell()
    reading = reading_at(document, "results", index, "measures", name)
    differs = result["differences"] or {}
    difference = reading_at(document, "results", index, "differences", name) if name in differs else None
    measure = result["measures"][name]
    sort = (
        reading.value.full
        if reading.sort is None
        else repr(measure.get("image_px", reading.sort) if mixed else reading.sort)
    )
    return TableCell(
        reading=reading,
        difference=difference,
        unit=unit_text(measure["in"], flat=result["in_plane"]) if mixed else "",
        sort=sort,
    )


def _units(document: Mapping[str, Any], name: str) -> list[str]:
    """The units that a measure has in the rows."""
    found = ((result["measures"].get(name), result["in_plane"]) for result in document["results"])
    return list(
        dict.fromkeys(unit_text(m["in"], flat=flat) for m, flat in found if m is not None and m["value"] is not None)
    )


def unit_text(unit: str, *, flat: bool = False) -> str:
    """A unit of the JSON as it is printed; ``flat`` for sizes that are in-plane."""
    text = UNIT_SIGNS.get(unit, unit)
    return f"{text} {IN_PLANE}" if flat and unit.startswith(("px", "cells")) else text


def _structure(
    document: Mapping[str, Any], index: int, name: str, result: Result, text: Callable[[Result], str]
) -> TableCell:
    """A cell on the layer or the model; what is not one number stays in words."""
    if name == "params M":
        return _cost(document, index, "parameters", "millions", result)
    if name == "GMACs":
        return _cost(document, index, "gmacs", "plain", result)
    if name == "stride":
        return TableCell(text=text(result), sort="" if result.unit is None else repr(float(max(result.unit.stride_px))))
    return TableCell(text=text(result), sort="" if result.trf is None else repr(float(max(result.trf.size_px))))


def _cost(document: Mapping[str, Any], index: int, name: str, form: Any, result: Result) -> TableCell:
    if result.cost is None:
        return TableCell(text="–")
    number = number_at(document, "results", index, "cost", name, form=form)
    return TableCell(number=number, sort=number.full)


_HEADS = {"TRF": "theoretical", "params M": "parameters"}
_LENGTHS = ("stride", "TRF")
