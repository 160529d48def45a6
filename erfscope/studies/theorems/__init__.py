"""``theorems``: every closed form of :mod:`erfscope.theory` against the engine, on the blocks of
:mod:`erfscope.adapters`.

May import: what ``studies`` may, and its ``study``.

The engine (:func:`erfscope.influence`) differentiates a block or a plain function; the theory has the same numbers in
closed form. Expectations are compared with samples, in standard errors. Statements without a formula are properties.
docs/theory.md explains the errata that the sources name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from erfscope.figures.chart_data import Chart, Curve, Picture
from erfscope.studies.study import VERDICT, Column, StudyFindings, StudyOptions, cell
from erfscope.studies.theorems import attention, convolutions, gatv2, graphs, pooling, properties
from erfscope.studies.theorems.claim import KINDS, LIMIT, Z_LIMIT, Case, Draws, Kind, Outcome

FAMILIES: dict[str, tuple[Case, ...]] = {
    "convolutions": convolutions.CASES,
    "graph convolutions": graphs.CASES,
    "graph attention": gatv2.CASES,
    "self-attention": attention.CASES,
    "pooling": pooling.CASES,
    "properties": properties.CASES,
}
#: Ends of the figure's axis, as shares of a limit; a rounding step of float64 is 1e-6 of that of a closed form.
FLOOR, CEILING = 1e-8, 1e3
CASES: tuple[Case, ...] = tuple(case for cases in FAMILIES.values() for case in cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row: a statement, and how far off it was."""

    name: str
    source: str
    kind: Kind
    #: Largest error, relative to the largest number of the closed form; None for an expectation.
    error: float | None
    #: The largest error that passes.
    limit: float | None
    #: Z-score of the entry that is furthest off; None for a closed form.
    z: float | None
    samples: int | None
    passed: bool
    #: The exception that ended the check.
    problem: str | None = None


def study(asked: StudyOptions) -> StudyFindings:
    """Check every case. A case that raises an exception fails, and the others go on."""
    rows = [_check(case, asked) for case in asked.each("theorems", CASES)]
    rows.sort(key=lambda row: KINDS.index(row.kind))
    return StudyFindings(
        columns=COLUMNS, section="kind", rows=tuple(rows), conclusion=_conclusion(rows), picture=picture(rows)
    )


def draws_of(case: Case, asked: StudyOptions) -> Draws:
    """The case's random numbers: what other cases draw does not change them."""
    digest = hashlib.sha256(f"{asked.seed} {case.name}".encode()).digest()
    return Draws(generator=torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1), quick=asked.quick)


def _check(case: Case, asked: StudyOptions) -> Claim:
    problem = None
    try:
        outcome = case.run(draws_of(case, asked))
    except Exception as error:  # the row has the exception, and the other rows go on
        outcome, problem = Outcome(), f"{type(error).__name__}: {error}"
    limit = outcome.limit if outcome.error is not None else None
    return Claim(
        name=case.name,
        source=case.source,
        kind=case.kind,
        error=outcome.error,
        limit=limit,
        z=outcome.z,
        samples=outcome.samples,
        passed=outcome.passed,
        problem=problem,
    )


def _conclusion(rows: list[Claim]) -> str:
    failed = [row.name if row.problem is None else f"{row.name} ({row.problem})" for row in rows if not row.passed]
    if failed:
        return f"{len(failed)} of {len(rows)} claims failed: {', '.join(failed)}."
    error = max((row.error for row in rows if row.error is not None and row.kind == "closed form"), default=0.0)
    z = max((abs(row.z) for row in rows if row.z is not None), default=0.0)
    exact, sampled = (
        f"closed forms to {error:.0e} (limit {LIMIT:.0e})",
        f"expectations within {z:.1f} standard errors (limit {Z_LIMIT:g})",
    )
    return f"All {len(rows)} claims hold: {exact}, {sampled}."


def share_of_limit(row: Claim) -> float:
    """Return an error, or the size of a z-score, as a share of its limit; infinite if there is none, or if the limit is
    0 and the error is not."""
    if row.z is not None:
        return abs(row.z) / Z_LIMIT
    if row.error is None or row.limit is None or math.isnan(row.error):
        return math.inf
    return row.error / row.limit if row.limit else 0.0 if row.error == 0 else math.inf


def picture(rows: Sequence[Claim]) -> Picture:
    """Draw the error of every claim as a share of its limit, by kind and family."""
    exact = [row for row in rows if row.kind == "closed form"]
    others = [row for row in rows if row.kind != "closed form"]
    parts = (("Closed forms", exact), ("Expectations and properties", others))
    return Picture(
        title="Claims of the literature, each against its limit",
        rows=(tuple(_chart(title, part) for title, part in parts if part),),
        note=(
            f"Limits: {LIMIT:.0e} of the largest number for a closed form, {Z_LIMIT:g} standard errors for an"
            f" expectation, and those of the table for properties. Zero is drawn at {FLOOR:g}, and errors that are not"
            f" finite at {CEILING:g}."
        ),
    )


def _chart(title: str, rows: Sequence[Claim]) -> Chart:
    family_of = {case.name: family for family, cases in FAMILIES.items() for case in cases}
    curves = []
    for family in FAMILIES:
        places = [place for place, row in enumerate(rows) if family_of.get(row.name) == family]
        shares = [min(max(share_of_limit(rows[place]), FLOOR), CEILING) for place in places]
        curves.append(Curve(label=family, x=shares, y=places, points=True))
    return Chart(
        title=title,
        x="error / limit",
        y="",
        curves=tuple(curves),
        names=tuple(row.name for row in rows),
        marks=(("limit", 1.0),),
        log="x",
        sideways=True,
    )


def _limit(row: Claim) -> str:
    return (
        f"{Z_LIMIT:g}" if row.z is not None else "" if row.limit is None else f"{row.limit:.0e}" if row.limit else "0"
    )


COLUMNS = (
    Column(title="claim", text=lambda row: row.name, numeric=False),
    Column(title="source", text=lambda row: row.source, numeric=False, folds=True),
    Column(title="max error", text=lambda row: cell(row.error, ".1e")),
    Column(title="z", text=lambda row: cell(row.z, "+.2f")),
    Column(title="samples", text=lambda row: cell(row.samples, "d")),
    Column(title="limit", text=_limit, optional=True),
    VERDICT,
)
