"""Forward passes with noise beside the gradient: a line for results, and a sentence for papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from erfscope.geometry.names import IMAGE
from erfscope.maps.trust import BENT, Trust
from erfscope.printable import number, with_error
from erfscope.results.result import Result


def trust_text(result: Result) -> str:
    """The agreement of forward passes with noise and the gradient, in one line; "" where no passes were made."""
    trust = result.trust
    if trust is None:
        return ""
    passes = f"{trust.passes} passes with noise{', some in float64' if trust.is_in_double else ''}"
    return f"Trust, by {passes}: {'; '.join([_gradient(trust), *_where(trust), *_linear(trust, result.wrt)])}"


def trust_sentence(results: Sequence[Result]) -> str:
    """The same of several results for a paper; "" unless all of them were compared."""
    trusts = [result.trust for result in results if result.trust is not None and result.trust.ratio is not None]
    if not trusts or len(trusts) < len(results):
        return ""
    ratios = [trust.ratio.value for trust in trusts if trust.ratio is not None]
    found = f"{min(ratios):.3f}" if len(ratios) == 1 else f"{min(ratios):.3f} to {max(ratios):.3f}"
    passes = sum(trust.passes for trust in trusts)
    return (
        f"Gradients were compared with forward passes with Gaussian noise ({passes} passes), which found {found} of"
        " their energy."
    )


def _gradient(trust: Trust) -> str:
    if trust.silent_because:
        return trust.silent_because
    if trust.ratio is None:
        if trust.moved_without_gradient:
            return "the gradient disagrees, since it is zero"
        return "no image has a gradient, and noise moves the unit in none"
    word = "disagrees" if trust.disagrees else "agrees"
    return f"the gradient {word}, noise finds {with_error(*trust.ratio)} of its energy"


def _where(trust: Trust) -> Iterator[str]:
    found = [
        f"{region.name} {with_error(100 * region.probe.energy.value, 100 * region.probe.energy.se)} %"
        f" ({100 * region.probe.share:.1f} % by gradient)"
        for region in trust.regions
    ]
    if found:
        yield f"of that {', '.join(found)}"


def _linear(trust: Trust, wrt: str) -> Iterator[str]:
    if not trust.ladder:
        return
    whole, sigma, first = "input" if wrt == IMAGE else "reference", trust.linear_to, trust.ladder[0].sigma
    last = trust.ladder[-1].sigma
    grey = "" if trust.grey_levels is None else f", {number((sigma or last) * trust.grey_levels)} of 255 grey levels"
    if sigma is None:
        reach = f"beyond noise of {number(last)}"
    else:
        reach = f"up to noise of {number(sigma)}" if sigma > first else f"not up to noise of {number(first)}"
    tenth = "" if trust.at_tenth is None else f"; energy at a tenth {with_error(*trust.at_tenth)}"
    yield f"linear within {100 * BENT:g} % {reach} standard deviations of the {whole}{grey}{tenth}"
