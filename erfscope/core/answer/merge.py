"""Shards of a run put together: exactly the run's own result, or a refusal that names the shards that are missing,
given twice or different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erfscope.core.answer.comparability import Use, short, unlike
from erfscope.core.answer.from_sums import result_from_sums, with_trust
from erfscope.core.answer.hidden import with_hidden
from erfscope.core.answer.input_shares import with_shares_again
from erfscope.core.answer.maps.trust import join
from erfscope.core.answer.partial import concatenate
from erfscope.core.answer.result import Result, with_provenance
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.finding import Finding, code_of

if TYPE_CHECKING:
    from erfscope.core.answer.report import Report


def is_shard(report: Report) -> bool:
    """Whether a report holds a shard of a run."""
    return any(result.part is not None and result.part.shard is not None for result in report)


def run_of(report: Report) -> object:
    """A key that the shards of one run share: the names of their results, the weights and the images."""
    return tuple(
        (result.id, result.label, result.weights.sha256, result.input.sha256, result.convention) for result in report
    )


def merge(reports: Sequence[Report]) -> Report:
    """The run that was measured in shards, as if it had been measured at once.

    Sums are added in the order of the shards, so the result does not depend on the order in which they are given.

    Args:
        reports: One report per shard, as read from where ``-o DIR`` stored them.

    Returns:
        A report as of one run; if the shards were measured with different versions, every result has a finding on that.

    Raises:
        ErfscopeError: there is no report, or one that is no shard.
        MeasurementError: a shard is missing or given twice, or they come from different runs.
    """
    if not reports:
        raise ErfscopeError("nothing to merge; name the folders that `--shard i/n -o DIR` wrote")
    numbers = [_number(report) for report in reports]
    of = numbers[0][1]
    for report, (number, other) in zip(reports, numbers, strict=True):
        if other != of:
            raise MeasurementError(
                f"shard {number}/{other} of {report[0].label} is of another run than shard {numbers[0][0]}/{of}"
            )
    have = [number for number, _ in numbers]
    twice = sorted({number for number in have if have.count(number) > 1})
    if twice:
        raise MeasurementError(
            f"given more than once: {_shards(twice, of)} of {reports[0][0].label}; name each shard once"
        )
    missing = [number for number in range(1, of + 1) if number not in have]
    if missing:
        raise MeasurementError(
            f"missing: {_shards(missing, of)} of {reports[0][0].label}; measure them with --shard, and name all {of}"
        )
    ordered = [report for _, report in sorted(zip(have, reports, strict=True), key=lambda pair: pair[0])]
    names = [[result.id for result in report] for report in ordered]
    for number, found in enumerate(names, 1):
        if found != names[0]:
            odd = sorted(set(found) ^ set(names[0])) or ["their order"]
            raise MeasurementError(
                f"shards 1/{of} and {number}/{of} hold different results: {', '.join(odd[:3])}; measure the same in"
                " each"
            )
    of_versions = tuple(_versions(ordered))
    results = tuple(
        _merged(group, ordered, of_versions) for group in zip(*(report.results for report in ordered), strict=True)
    )
    results = tuple(with_shares_again(results, ordered[0].results))
    return replace(ordered[0], results=results, settings={**ordered[0].settings, "shard": None})


def _number(report: Report) -> tuple[int, int]:
    shard = next((result.part.shard for result in report if result.part is not None), None)
    stopped = next((result for result in report if result.part is not None and result.part.stopped), None)
    if shard is not None and stopped is not None and stopped.part is not None:
        raise MeasurementError(
            f"shard {shard} of {stopped.label} was stopped after {stopped.part.seen} of {stopped.part.wanted} images; "
            "run its command again with --resume first"
        )
    if shard is None:
        label = report[0].label if len(report) else "a report"
        raise ErfscopeError(
            f"{label} is no shard with its sums; store shards as folders, `--shard i/n -o DIR`, and name those"
        )
    return shard.number, shard.of


def _shards(numbers: Sequence[int], of: int) -> str:
    return ("shard " if len(numbers) == 1 else "shards ") + ", ".join(f"{number}/{of}" for number in numbers)


def _versions(reports: Sequence[Report]) -> list[Finding]:
    """A finding if the shards were measured with different versions."""
    found: list[dict[str, Any]] = [dict(report.environment.get("versions", {})) for report in reports]
    names = [name for name in found[0] if len({str(each.get(name)) for each in found}) > 1]
    text = "; ".join(f"{name} {', '.join(dict.fromkeys(str(each.get(name)) for each in found))}" for name in names)
    return [Finding(code="versions", text=f"the shards were measured with different versions: {text}")] if names else []


def _merged(group: Sequence[Result], reports: Sequence[Report], of_versions: Sequence[Finding]) -> Result:
    """One result from those of all shards."""
    first = group[0]
    failed = [(number, result) for number, result in enumerate(group, 1) if result.part is None]
    if len(failed) == len(group):
        return first
    if failed:
        number, row = failed[0]
        return replace(row, error=f"shard {number}/{len(group)} failed: {row.error}", status="error")
    for number, result in enumerate(group[1:], 2):
        _refuse_unlike(first, result, number)
    whole = concatenate([result.part for result in group if result.part is not None])
    findings = dict.fromkeys(
        finding for result in group for finding in result.findings if code_of(finding).scope == "model"
    )
    result = result_from_sums(
        replace(first, measures={}, map=None, hops=None, published=None, frame_mass=None, findings=()),
        whole,
        findings=(*findings, *of_versions),
    )
    trusts = [part.trust for part in group if part.trust is not None]
    if len(trusts) == len(group):
        result = with_trust(result, with_hidden(join(trusts), result.map))
    versions = reports[0].environment.get("versions", {})
    return with_provenance(replace(result, seconds=sum(each.seconds for each in group)), versions)


def _refuse_unlike(first: Result, result: Result, number: int) -> None:
    assert first.part is not None
    assert first.part.shard is not None
    if found := unlike(Use.RESUME | Use.MERGE, first, result):
        of = first.part.shard.of
        values = [f"{name} ({short(ours)} against {short(theirs)})" for name, ours, theirs in found[:3]]
        raise MeasurementError(
            f"shards 1/{of} and {number}/{of} of {first.label} are not of one run: they differ in {', '.join(values)}; "
            "measure all shards with the same settings"
        )
