"""What forward passes with noise say of a gradient, in words."""

from __future__ import annotations

from erfscope.geometry.names import IMAGE
from erfscope.maps.probe import Estimate
from erfscope.maps.trust import BENT, Trust
from erfscope.results.result import Result
from erfscope.tables.columns import number, with_error

#: The finding of a gradient that is zero where noise moves the unit.
MOVED = "the gradient is zero, but noise moves the unit"


def trust_line(result: Result) -> str | None:
    """The three statements in one line; None where they were not asked for.

    Args:
        result: Measured with ``trust``.
    """
    trust = result.trust
    if trust is None:
        return None
    parts = [
        _gradient(trust),
        *([_where(trust)] if trust.regions else []),
        *([_linear(trust, result.wrt)] if trust.ladder else []),
    ]
    passes = f"{trust.passes} passes with noise{', some in float64' if trust.is_in_double else ''}"
    return f"Trust, by {passes}: {'; '.join(parts)}"


def _gradient(trust: Trust) -> str:
    if trust.silent_because:
        return trust.silent_because
    if trust.ratio is None:
        return MOVED if trust.moved_without_gradient else "no image has a gradient, and noise moves the unit in none"
    word = "disagrees" if trust.disagrees else "agrees"
    return f"the gradient {word}, noise finds {with_error(*trust.ratio)} of its energy"


def _where(trust: Trust) -> str:
    found = [
        f"{region.name} {_percent(region.probe.energy)} ({100 * region.probe.share:.1f} % by gradient)"
        for region in trust.regions
    ]
    return f"of that {', '.join(found)}"


def _percent(energy: Estimate) -> str:
    return f"{with_error(100 * energy.value, 100 * energy.se)} %"


def _linear(trust: Trust, wrt: str) -> str:
    whole, sigma, first = "input" if wrt == IMAGE else "reference", trust.linear_to, trust.ladder[0].sigma
    grey = (
        ""
        if trust.grey_levels is None
        else f", {number((sigma or trust.ladder[-1].sigma) * trust.grey_levels)} of 255 grey levels"
    )
    tenth = "" if trust.at_tenth is None else f"; energy at a tenth {with_error(*trust.at_tenth)}"
    if sigma is None:
        reach = f"beyond noise of {number(trust.ladder[-1].sigma)}"
    else:
        reach = f"up to noise of {number(sigma)}" if sigma > first else f"not up to noise of {number(first)}"
    return f"linear within {100 * BENT:g} % {reach} standard deviations of the {whole}{grey}{tenth}"
