"""What the gate found, as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erfscope.gate.entry import BaselineMeasure
from erfscope.gate.judge import MeasureVerdict
from erfscope.results.json_values import fields, plain

if TYPE_CHECKING:
    from erfscope.gate.report import CheckReport
    from erfscope.gate.verdict import Verdict

SCHEMA = "erfscope.check/1"


def report_to_json(report: CheckReport) -> dict[str, Any]:
    """A whole run."""
    return {
        "schema": SCHEMA,
        "exit_code": report.exit_code,
        "baseline": str(report.baseline),
        "written": list(report.written),
        "notices": list(report.notices),
        "checks": [verdict_to_json(verdict) for verdict in report],
    }


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """One check: its verdict, and obtained, expected and tolerance of everything compared."""
    document: dict[str, Any] = plain(
        {
            "name": verdict.name,
            "verdict": verdict.word,
            "cause": verdict.cause,
            "reason": verdict.reason,
            "structure": [fields(change) for change in verdict.structure],
            "measures": {measure.name: _measure(measure) for measure in verdict.measures},
            "notices": verdict.notices,
            "accept": verdict.accept,
            "obtained": verdict.obtained.to_json(),
        }
    )
    return document


def _measure(measure: MeasureVerdict) -> dict[str, Any]:
    return {
        "verdict": measure.word,
        "obtained": _number(measure.obtained),
        "expected": _number(measure.expected),
        "tolerance": str(measure.tolerance),
        "limit": measure.limit,
        "difference": measure.difference,
        "se": measure.se,
        "needed": measure.needed,
        "reason": measure.reason,
        "notice": measure.notice,
    }


def _number(recorded: BaselineMeasure | None) -> dict[str, float | None] | None:
    return None if recorded is None else {"value": recorded.value, "se": recorded.se}
