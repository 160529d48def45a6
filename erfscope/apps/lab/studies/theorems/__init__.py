"""``theorems``: every closed form of :mod:`erfscope.apps.lab.theory` against the engine, on the blocks of
:mod:`erfscope.adapters`.

May import: what ``studies`` may, and its ``study``.

The engine (:func:`erfscope.influence`) differentiates a block or a plain function; the theory has the same numbers in
closed form. Expectations are compared with samples, in standard errors. Statements without a formula are properties.
docs/theory.md explains the errata that the sources name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from erfscope.apps.lab.studies.study import (
    VERDICT,
    Claim,
    StudyColumn,
    StudyFindings,
    StudyOptions,
    StudyRow,
    claim,
    holds,
)
from erfscope.apps.lab.studies.theorems import attention, chebyshev, convolutions, gatv2, graphs, pooling, properties
from erfscope.apps.lab.studies.theorems.case import KINDS, LIMIT, Z_LIMIT, Case, CaseOutcome, Draws, Kind
from erfscope.show import Chart, Curve, Picture

FAMILIES: dict[str, tuple[Case, ...]] = {
    "convolutions": convolutions.CASES,
    "graph convolutions": (*graphs.CASES, *chebyshev.CASES),
    "graph attention": gatv2.CASES,
    "self-attention": attention.CASES,
    "pooling": pooling.CASES,
    "properties": properties.CASES,
}
#: Ends of the figure's axis, as shares of a limit; a rounding step of float64 is 1e-6 of that of a closed form.
FLOOR, CEILING = 1e-8, 1e3
CASES: tuple[Case, ...] = tuple(case for cases in FAMILIES.values() for case in cases)


def study(asked: StudyOptions) -> StudyFindings:
    """Check every case. A case that raises an exception fails, and the others go on."""
    rows = [_check(case, asked) for case in asked.each("theorems", CASES)]
    rows.sort(key=lambda row: KINDS.index(row.kind))
    return StudyFindings(columns=COLUMNS, section="kind", rows=rows, claims=_claims(rows), picture=picture(rows))


def draws_of(case: Case, asked: StudyOptions) -> Draws:
    """The case's random numbers: what other cases draw does not change them."""
    digest = hashlib.sha256(f"{asked.seed} {case.name}".encode()).digest()
    return Draws(
        generator=torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1),
        quick=asked.effort in ("quick", "smoke"),
    )


def _check(case: Case, asked: StudyOptions) -> StudyRow:
    problem = None
    try:
        outcome = case.run(draws_of(case, asked))
    except Exception as error:  # the row has the exception, and the other rows go on
        outcome, problem = CaseOutcome(), f"{type(error).__name__}: {error}"
    return StudyRow(
        name=case.name,
        source=case.source,
        kind=case.kind,
        # Largest error, relative to the largest number of the closed form, and the largest that passes; None for an
        # expectation.
        error=outcome.error,
        limit=None if outcome.error is None else outcome.limit,
        # Z-score of the entry that is furthest off; None for a closed form.
        z=outcome.z,
        samples=outcome.samples,
        passed=outcome.passed,
        # The exception that ended the check.
        problem=problem,
    )


def _claims(rows: Sequence[StudyRow]) -> list[Claim]:
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    error = max((row.error or 0.0 for row in by_kind["closed form"]), default=0.0)
    z = max((abs(row.z or 0.0) for row in by_kind["expectation"]), default=0.0)
    share = max((share_of_limit(row) for row in by_kind["property"]), default=0.0)
    found: dict[Kind, tuple[str, str]] = {
        "closed form": (f"to {LIMIT:.0e}", f"to {error:.0e}"),
        "expectation": (f"within {Z_LIMIT:g} standard errors", f"within {z:.1f}"),
        "property": ("within the table's limits", f"at most {share:.0%} of them"),
    }
    named = {"closed form": "closed forms", "expectation": "expectations", "property": "properties"}
    return [
        claim(f"{len(by_kind[kind])} {named[kind]}, corrected by the errata", *found[kind], holds(by_kind[kind]))
        for kind in KINDS
        if by_kind[kind]
    ]


def share_of_limit(row: StudyRow) -> float:
    """Return an error, or the size of a z-score, as a share of its limit; infinite if there is none, or if the limit is
    0 and the error is not."""
    if row.z is not None:
        return float(abs(row.z)) / Z_LIMIT
    if row.error is None or row.limit is None or math.isnan(row.error):
        return math.inf
    return float(row.error) / row.limit if row.limit else 0.0 if row.error == 0 else math.inf


def picture(rows: Sequence[StudyRow]) -> Picture:
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


def _chart(title: str, rows: Sequence[StudyRow]) -> Chart:
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


def _limit(row: StudyRow) -> str:
    return (
        f"{Z_LIMIT:g}" if row.z is not None else "" if row.limit is None else f"{row.limit:.0e}" if row.limit else "0"
    )


COLUMNS = (
    StudyColumn("claim", "{name}", numeric=False),
    StudyColumn("source", "{source}", numeric=False, folds=True),
    StudyColumn("max error", "{error:.1e}"),
    StudyColumn("z", "{z:+.2f}"),
    StudyColumn("samples", "{samples}"),
    StudyColumn("limit", _limit, optional=True),
    VERDICT,
)
