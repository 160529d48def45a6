"""From sums over images to a result: the map, its measures, status and findings. Needs no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from erfscope.core.answer.findings import of_map
from erfscope.core.answer.maps.accumulator import MIN_GROUPS, MapAccumulator
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.maps.hops import HopProfile
from erfscope.core.answer.maps.reference_tools import published_numbers
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.answer.measures import MEASURES, MeasureValue, with_errors
from erfscope.core.answer.measures.prepared import Prepared
from erfscope.core.answer.measures.sizes import along
from erfscope.core.answer.measures.values import of_axes
from erfscope.core.answer.partial import PartialSums
from erfscope.core.answer.result import Result, Status
from erfscope.core.values.axes import TIME, Axes
from erfscope.core.values.finding import Finding
from erfscope.core.values.unit import Trf

#: In bfloat16 rounding is not a thousand times smaller than a gradient; a gradient below this ratio is noise all the
#: same.
COARSE_FLOOR = 0.05
#: Bytes of the sums by groups that a result keeps at most: those of a map of 512 x 512.
KEPT = 10 * 8 * 512**2


def result_from_sums(result: Result, part: PartialSums, *, findings: Sequence[Finding]) -> Result:
    """A result with everything that follows from its sums.

    Args:
        result: Everything else: model, input, layer, unit, TRF.
        part: The sums, over some images or all.
        findings: Those that do not follow from the map.
    """
    average, noun = part.average, result.input.noun
    status, error = status_of(result, part)
    lost = part.lost
    has_ratio = part.ratio is not None or not average.zero_gradient_images or bool(average.groups)
    source = replace(
        result.input,
        n_images=part.seen,
        n_dead=len(lost),
        dead=tuple(part.names[index] for index in lost[:20]),
        text=_text(part, noun),
    )
    result = replace(
        result,
        status=status,
        error=error,
        input=source,
        se_over=average.over,
        masses=average.masses or {},
        gradient_ratio=part.ratio if has_ratio else 0.0,
        part=None if part.is_whole else part,
    )
    if not average.groups or result.trf is None:
        return replace(result, findings=tuple(finding for finding in findings if finding.code == "gradient_unproved"))
    erf = map_of(average, result.trf, result.scale, result.input.size, result.axes, result.own_time)
    whole, names = Prepared.of(erf), of_axes(part.measures, erf.axes)
    how: dict[str, Any] = {"groups": average.groups, "spread": average.spread, "whole": whole}
    measures = with_errors(erf, average.leave_one_out(), names, **how)
    # Occluding patches reach beyond the TRF's edge; only a gradient outside it is a fault.
    leaked = average.outside_trf and result.method == "gradient"
    shown = of_map(erf, average, whole, wrt=result.wrt, noun=noun, leaked=leaked)
    areas = _of_areas(measures, noun if average.over == "images" else "draw") if average.groups >= MIN_GROUPS else ()
    return replace(
        result,
        map=erf,
        measures=measures,
        sums=average if average.nbytes <= KEPT else None,
        # Other tools have no such options.
        published=None if result.options else published_numbers(result.convention, average.raw()),
        frame_mass=frame_mass(erf),
        hops=None if part.hops is None else HopProfile.of(erf.magnitude, part.hops),
        findings=(*_incomplete(part, noun), *_lost_images(part, noun), *shown, *findings, *areas),
    )


def _of_areas(measures: Mapping[str, MeasureValue], noun: str) -> Iterator[Finding]:
    """The finding on effective numbers of cells that have no error though there are groups enough for one."""
    areas = [name for name, found in measures.items() if found.kind == "area" and found.value is not None]
    if names := [name for name in areas if MEASURES[name].has_se and measures[name].se is None]:
        text = f"nearly every {noun} has cells of its own: what {' and '.join(names)} counts is {noun}s; take more"
        yield Finding(code="too_few_images", text=text)


def frame_mass(erf: ErfMap) -> tuple[float, ...] | None:
    """The share of a map in each frame of a clip; None for other references."""
    if not erf.axes.is_in_plane:
        return None
    return tuple(along(erf.magnitude, [erf.axes.names.index(TIME)]).tolist())


def map_of(
    average: MapAccumulator,
    trf: Trf,
    scale: str,
    size: Sequence[int],
    axes: Axes,
    own_time: tuple[float, float] | None = None,
) -> ErfMap:
    """The map of the images summed up; ``size`` is theirs."""
    return ErfMap(
        values=average.values(),
        center_px=trf.center_px,
        stride_px=trf.stride_px,
        scale=scale,  # type: ignore[arg-type]
        cell_px=cell_sides(size, trf.reference_px),
        trf=trf,
        axes=axes,
        own_time=own_time,
    )


def cell_sides(size: Sequence[int], reference: Sequence[int]) -> tuple[float, ...]:
    """Sides of the cells of a reference of so many in pixels of an input of this size."""
    # A reference without the input's time axis has its rows and columns.
    return tuple(whole / cells for whole, cells in zip(size[-len(reference) :], reference, strict=True))


def with_trust(result: Result, trust: Trust) -> Result:
    """The result with the check of its gradient by forward passes: if the two disagree, it is usable only if that is
    accepted."""
    others = tuple(each for each in result.findings if each.code not in ("gradient_unproved", "gradient_disagrees"))
    result = replace(result, trust=trust, findings=others)
    if trust.silent_because:
        return replace(
            result,
            findings=(Finding(code="gradient_unproved", text=f"--trust: {trust.silent_because}"), *result.findings),
        )
    if not trust.disagrees:
        return result
    text = disagreement(trust, result.input.noun)
    result = replace(result, findings=(Finding(code="gradient_disagrees", text=text), *result.findings))
    if trust.accepted or result.status != "ok":
        return result
    return replace(
        result, status="degenerate", error=f"{text}; --accept gradient_disagrees to accept it despite this finding"
    )


def disagreement(trust: Trust, noun: str = "image") -> str:
    """The text of a disagreement between the gradient and forward passes."""
    if trust.moved_without_gradient:
        several = trust.moved_without_gradient != 1
        count = f"{trust.moved_without_gradient} {noun}{'s' * several}"
        text = f"the gradient disagrees with forward passes: it is zero for {count}, and noise moves the unit"
    elif trust.hidden is not None and trust.hidden.region:
        text = (
            f"the gradient disagrees with forward passes: {trust.hidden.region} it predicts nothing of what noise does"
            f" to the unit; they leave {trust.hidden} possible"
        )
    else:
        assert trust.ratio is not None
        value, se = trust.ratio
        energy = f"noise moves the unit with {value:.3g} ± {se:.2g} times the energy it predicts"
        missed = f"and {trust.missed:.0%} of the change, in root mean square, otherwise than it predicts"
        text = f"the gradient disagrees with forward passes: {energy}, {missed}"
    if trust.module is None:
        return text
    return f"{text}; the first operation without a true derivative is in {trust.module or 'the model itself'}"


def status_of(result: Result, part: PartialSums) -> tuple[Status, str | None]:
    """ok, degenerate or error, and why."""
    average, seen = part.average, part.seen
    if average.groups == 0 and len(average.zero_gradient_images) > len(average.nan_images):
        hint = "" if average.convention.random else ", or --convention jacobian"
        why = f": {part.zero_cause}" if part.zero_cause else f"; try another layer or unit{hint}"
        return (
            "degenerate",
            f"the gradient is zero for {_count(average.zero_gradient_images, seen, result.input.noun)}{why}",
        )
    if average.groups == 0 and average.nan_images:
        lost = _count(average.nan_images, seen, result.input.noun)
        return "error", f"gives NaN for {lost}: {part.nan_cause or 'a gradient is not finite'}"
    if average.groups == 0:
        return "error", f"none of the {seen} {result.input.noun}s could be read"
    if part.ratio is not None and part.ratio < noise_floor(result.amp_dtype or result.dtype):
        text = f"the gradient is {part.ratio:.1e} of a random-sign draw's where channels have cancelled"
        return "degenerate", f"{text}: rounding noise, not an ERF; use --convention jacobian"
    return "ok", None


def noise_floor(dtype: str) -> float:
    """The ratio of a gradient to that of a random-sign draw below which it is rounding noise, for what was computed in
    ``dtype``."""
    return min(1e3 * torch.finfo(getattr(torch, dtype)).eps, COARSE_FLOOR)


def _count(images: Sequence[int], seen: int, noun: str) -> str:
    if len(images) < seen:
        return f"{len(images)} of {seen} {noun}s and none of the others can be used"
    return f"the only {noun}" if seen == 1 else f"all {seen} {noun}s"


def _text(part: PartialSums, noun: str) -> str:
    """The text for the images: which of all of them were seen."""
    if part.shard is not None:
        return f"shard {part.shard}, {part.seen} {noun}s of {part.text}"
    if part.seen == part.n_all:
        return part.text
    return f"the first {part.seen} of {part.text}" + (f", enough for r50 ± {part.enough:.3g}" if part.enough else "")


def _incomplete(part: PartialSums, noun: str) -> Iterator[Finding]:
    """The findings on a run that is not complete."""
    if part.stopped:
        text = f"stopped after {part.seen} of {part.wanted} {noun}s; --resume adds the others in a run with -o DIR"
        yield Finding(code="stopped", text=text)
    if part.shard is not None:
        text = f"shard {part.shard} saw {part.seen} of {part.n_all} {noun}s; `erfscope merge` puts the shards together"
        yield Finding(code="shard", text=text)


def _lost_images(part: PartialSums, noun: str) -> Iterator[Finding]:
    """The findings on images that were left out of the map, with their names."""
    kinds: tuple[tuple[str, Sequence[int], str], ...] = (
        ("dead_images", part.average.zero_gradient_images, "a gradient of zero"),
        ("nan_images", part.average.nan_images, "a gradient that is not finite"),
        ("unreadable_images", part.unreadable, f"{'pixels' if noun == 'image' else 'values'} that cannot be read"),
    )
    for code, images, text in kinds:
        if images:
            names = ", ".join(part.names[index] for index in images[:3]) + (", ..." if len(images) > 3 else "")
            yield Finding(
                code=code, text=f"{len(images)} {noun}{'s' * (len(images) != 1)} with {text} left out: {names}"
            )
