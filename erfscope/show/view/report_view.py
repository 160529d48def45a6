"""The view of a report, built once: columns, rows of cells, shared conditions, findings and notes. Writers select from
it and format it; they add no words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from erfscope.core.answer.comparability import Differences, partners
from erfscope.core.answer.measures import INPUT_SHARE, MEASURES, SHOWN
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result, image_cell
from erfscope.core.values.finding import Finding, code_of
from erfscope.core.values.names import input_name
from erfscope.core.values.printable import DIGITS, listed_up_to, number
from erfscope.show.view import words
from erfscope.show.view.cells import SizeCells, measure_cell, number_cell, plain_cell, size_of, unit_of
from erfscope.show.view.error_bars import errors_note
from erfscope.show.view.extras import Extra, extras, halo_cell
from erfscope.show.view.table import MISSING, Cell, Column

#: Columns that describe the layer and the model.
STRUCTURE = ("stride", "TRF", "halo", "params", "GMACs")
#: By default a table has all measures of its results up to this number; of more, as of all that there are, those of a
#: comparison.
FEW = 20
#: Models that a note names.
FEW_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNote:
    """A finding or a failure of some rows."""

    #: That of a finding, or "failed".
    code: str
    text: str
    #: Positions of its rows; the text is that of the first.
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportRow:
    """One result."""

    index: int
    result: Result
    #: Its label with what tells it from other rows of that label.
    name: str
    #: Names of the conditions in that difference.
    distinguishing: tuple[str, ...]
    cells: Mapping[str, Cell]
    #: Position of the row to which it has differences; None for none.
    partner: int | None
    #: That row in the head of the differences: "first", "host" or its name; "" without differences.
    minus: str
    #: Whether that row is the model without the inserted block.
    has_host: bool
    sizes: tuple[SizeCells, ...]
    extras: tuple[Extra, ...]

    @property
    def label(self) -> str:
        """The model's label, with the status where the result cannot be used."""
        return self.result.label if self.result.ok else f"{self.result.label}: {self.result.status}"


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """Everything that outputs show of a report."""

    report: Report
    columns: tuple[Column, ...]
    rows: tuple[ReportRow, ...]
    #: The conditions that all usable rows share, by name.
    shared: Mapping[str, words.ConditionText]
    #: Findings and failures, each once for a model; notices only where there is one row.
    notes: tuple[ReportNote, ...]

    @property
    def results(self) -> tuple[Result, ...]:
        """The report's results."""
        return self.report.results

    @property
    def is_usable(self) -> bool:
        """Whether any result can be used."""
        return any(result.ok for result in self.results)

    @property
    def shown(self) -> list[Column]:
        """The columns of a wide table: conditions in which rows differ, measures, and what layer and model are."""
        kinds = {"condition": 0, "measure": 1, "structure": 2}
        found = (column for column in self.columns if column.differs or column.kind != "condition")
        return sorted(found, key=lambda column: kinds[column.kind])

    @property
    def shouts(self) -> list[str]:
        """The warning of random weights, with the rows that have them."""
        found: dict[str, list[str]] = {}
        measured = [result for result in self.results if result.map is not None or result.measures]
        for result in measured:
            found.setdefault(words.random_weights(result), []).append(result.label)
        return [
            text if len(labels) == len(measured) else f"{listed_up_to(6, list(dict.fromkeys(labels)))}: {text}"
            for text, labels in found.items()
            if text
        ]

    @property
    def below(self) -> list[str]:
        """The lines below a table: what columns mean, what rows share, why errors are absent, what inserted blocks
        cost."""
        shared = " · ".join(self.texts()) if self.is_usable else ""
        notes = filter(None, (words.plane_note(self.results), shared, errors_note(self.results)))
        return [*self.meanings, *notes, *filter(None, [self.pixel_note]), *self.costs]

    @property
    def pixel_note(self) -> str:
        """Where units stand that were asked for by a pixel on which they do not all stand; "" otherwise."""
        return words.pixel_note(self.results, self.report.settings.get("unit"))

    @property
    def meanings(self) -> list[str]:
        """The meanings of columns and cells that a reader may not know."""
        gloss = words.gloss_of(column.name for column in self.columns)
        units = {column.unit for column in self.columns if column.name in words.RADII} - {""}
        several = len({result.input.size for result in self.results if input_name(result.wrt)}) > 1
        own = " of each row's input" if several else ""
        gloss = " · ".join(filter(None, (*(f"sizes in {unit}{own}" for unit in units), gloss)))
        return [*filter(None, (": ".join(words.global_note(self.results) or ()), gloss))]

    @property
    def costs(self) -> list[str]:
        """The cost of each inserted block, one line each."""
        return list(dict.fromkeys(filter(None, map(self._cost_of_blocks, self.rows))))

    def _cost_of_blocks(self, row: ReportRow) -> str:
        result = row.result
        host = self.results[row.partner] if result.host and row.partner is not None else None
        if host is None or host.cost is None or result.cost is None:
            return ""
        text = f"{result.label}: {result.cost.parameters - host.cost.parameters:+,} parameters"
        known = result.cost.gmacs is not None and host.cost.gmacs is not None
        return text + (f", {(result.cost.gmacs or 0) - (host.cost.gmacs or 0):+.3g} GMACs" if known else "")

    def texts(self) -> list[str]:
        """The shared conditions as they read alone."""
        return [condition.alone for condition in self.shared.values()]

    def note_text(self, note: ReportNote) -> str:
        """A note with its first row and the number of the others of this model, or with the models that it is of."""
        if len(names := list(dict.fromkeys(self.rows[row].result.label for row in note.rows))) > 1:
            return note.text if len(note.rows) == len(self.rows) else f"{listed_up_to(FEW_NAMES, names)}: {note.text}"
        more = len(note.rows) - 1
        of = f" (and {more} more row{'s' * (more != 1)} of this model)" if more else ""
        return f"{self.rows[note.rows[0]].name}: {note.text}{of}"


def report_view(
    report: Report, measures: Sequence[str] | None = None, *, compared: Sequence[str] = SHOWN
) -> ReportView:
    """Everything that outputs show of a report.

    Args:
        report: The report.
        measures: The measures that have columns; where None, those that a comparison shows, or all where there are few.
        compared: Measures whose cells have differences to another row.
    """
    results = report.results
    chosen = list(measures) if measures is not None else chosen_measures(results)
    shared = words.shared(results) if results else {}
    rows = tuple(_rows(report, chosen, compared))
    return ReportView(
        report=report,
        columns=tuple(_columns(rows, chosen)) if rows else (),
        rows=rows,
        shared=shared,
        notes=tuple(_notes(results)),
    )


def chosen_measures(results: Sequence[Result]) -> list[str]:
    """The measures that a table shows by default."""
    names = dict.fromkeys((INPUT_SHARE, *SHOWN, *MEASURES))
    present = [name for name in names if any(name in result.measures for result in results)]
    compared = [name for name in present if name in (INPUT_SHARE, *SHOWN)]
    return (present if len(present) <= FEW else compared) or list(SHOWN)


def _rows(report: Report, measures: Sequence[str], compared: Sequence[str]) -> Iterator[ReportRow]:
    results, names, apart = report.results, words.names(report.results), words.distinctions(report.results)
    differences = report.differences([name for name in measures if name in compared])
    # In a column with several units each cell has its own.
    mixed = {name for name in measures if len({unit_of(name, r) for r in results if name in r.measures}) > 1}
    places = {id(each): place for place, each in reversed([*enumerate(results)])}
    for index, (result, other) in enumerate(zip(results, partners(results), strict=True)):
        partner = places.get(id(other))
        cells = {
            name: Cell(text=each.text) if each.text else MISSING for name, each in words.conditions(result).items()
        }
        cells |= dict.fromkeys(STRUCTURE, MISSING) | dict(_structure(result, index))
        for name in measures:
            cells[name] = _measure(result, name, index, differences[index], mixed=name in mixed)
        has_host = partner is not None and result.host == results[partner].id
        minus = "" if partner is None else "host" if has_host else "first" if partner == 0 else names[partner]
        yield ReportRow(
            index=index,
            result=result,
            name=names[index],
            distinguishing=tuple(apart[index]),
            cells=cells,
            partner=partner,
            minus=minus if differences[index] else "",
            has_host=has_host,
            sizes=tuple(
                size_of(result, name, index)
                for name in dict.fromkeys((*words.GLOSS, *result.measures))
                if name in result.measures
            ),
            extras=tuple(extras(result, index)),
        )


def _measure(result: Result, name: str, index: int, changes: Differences, *, mixed: bool) -> Cell:
    cell = measure_cell(result, name, index)
    change = changes.get(name)
    difference = None if change is None else number_cell(*change, f"/results/{index}/differences/{name}")
    if not mixed or not cell.pointer:
        return replace(cell, difference=difference)
    # Sizes in cells are sorted by their image pixels.
    pixel = image_cell(result)
    order = cell.value * pixel if pixel and MEASURES[name].unit == "px" and isinstance(cell.value, float) else None
    return replace(cell, difference=difference, unit=unit_of(name, result), order=order)


def _structure(result: Result, index: int) -> Iterator[tuple[str, Cell]]:
    unit, trf, cost = result.unit, result.trf, result.cost
    where = f"/results/{index}/cost"
    if unit is not None and unit.stride_px:
        yield "stride", Cell(text=words.square_text(unit.stride_px), order=float(max(unit.stride_px)))
    if trf is not None:
        yield "TRF", Cell(text=words.field_cell(trf), order=float(max(trf.size_px)))
    if result.halo is not None:
        yield "halo", Cell(text=halo_cell(result.halo), order=float(max(map(max, result.halo.px), default=math.inf)))
    if cost is not None:
        count = cost.parameters
        text = f"{number(count / 1e6)} M" if count >= 10**DIGITS else str(count)
        yield "params", Cell(text=text, value=count, pointer=f"{where}/parameters")
        yield "GMACs", plain_cell(cost.gmacs, f"{where}/gmacs")


def _columns(rows: Sequence[ReportRow], measures: Sequence[str]) -> Iterator[Column]:
    results = [row.result for row in rows]
    cells = [row.cells for row in rows if row.result.ok] or [row.cells for row in rows]
    lengths = {r.axes.cells for r in results if r.trf is not None} or {r.axes.cells for r in results}
    for name in dict.fromkeys(name for row in cells for name in row if name not in (*STRUCTURE, *measures)):
        if any(name in row and row[name].sort for row in cells):
            differs = len({row[name].text if name in row else "" for row in cells}) > 1
            yield Column(name=name, kind="condition", unit="px" if name == "input" else "", differs=differs)
    length = min(lengths) if len(lengths) == 1 else ""
    fixed = {"stride": length, "TRF": length, "halo": "px"}
    for name in STRUCTURE:
        if name not in ("stride", "TRF") and all(row.cells[name].is_missing for row in rows):
            continue
        differs = len({row[name].text for row in cells}) > 1
        yield Column(name=name, kind="structure", unit=fixed.get(name, ""), gloss=words.GLOSS[name], differs=differs)
    for name in measures:
        units = {unit_of(name, result) for result in words.usable(results)}
        unit = units.pop() if len(units) == 1 else ""
        yield Column(name=name, kind="measure", unit=unit, gloss=words.GLOSS.get(name, ""))


def unsaid(result: Result) -> list[Finding]:
    """The findings of a result that neither its error says already, nor the line on forward passes with noise."""
    error, is_tested = result.error or "", result.trust is not None
    return [
        each
        for each in result.findings
        if each.text not in error and not (is_tested and each.code == "gradient_unproved")
    ]


def _notes(results: Sequence[Result]) -> Iterator[ReportNote]:
    """Failures, each its own, and findings, once for each model and kind, or for several models of which it says the
    same."""
    for index, result in enumerate(results):
        if not result.ok:
            yield ReportNote(code="failed", text=result.error or result.status, rows=(index,))
    found: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    for index, result in enumerate(results):
        codes: Counter[str] = Counter()
        for finding in unsaid(result):
            if len(results) == 1 or code_of(finding).severity != "notice":
                # Several findings of one kind are a note each.
                found.setdefault((result.label, finding.code, codes[finding.code]), []).append((index, finding.text))
                codes[finding.code] += 1
    # What is said alike of several models is one note.
    alike: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for (label, code, place), rows in found.items():
        is_same = len({text for _, text in rows}) == 1
        alike.setdefault((code, rows[0][1]) if is_same else (code, label, str(place)), []).extend(rows)
    for (code, *_), rows in alike.items():
        yield ReportNote(code=code, text=rows[0][1], rows=tuple(index for index, _ in rows))
