"""From what a run has summed up to a result: the map, its measures, its status and its findings."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from erfscope.core.answer import from_sums
from erfscope.core.answer.convention import CONVENTIONS, convention_of
from erfscope.core.answer.findings import ONE_BY_ONE, of_model, of_site
from erfscope.core.answer.maps.accumulator import MapAccumulator
from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.measures import MeasureValue, with_errors
from erfscope.core.answer.measures.border import unseen_share
from erfscope.core.answer.partial import PartialSums
from erfscope.core.answer.result import Computed, InputRecord, Result, UnitRecord, slug, with_provenance
from erfscope.core.graph.record import UNRECORDED
from erfscope.core.images.feed import Images
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.cost import gradient_cut, unproved_operations
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.plan import Plan, RunReport, Sums, axes_of, map_of
from erfscope.core.system.environment import versions
from erfscope.core.values.axes import TOKENS
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import input_name, is_input
from erfscope.core.values.unit import Trf, sides
from erfscope.core.values.unit_kind import split_kind


def build_result(plan: Plan, sums: Sums, report: RunReport, number: int) -> Result:
    """The result of one unit from what was seen."""
    result = pending_result(plan, number, _first_picture(plan) if number == 0 else None)
    part = _part(plan, sums, number)
    result = from_sums.result_from_sums(result, part, findings=tuple(_findings(plan, sums, report, number)))
    return with_provenance(result, versions())


def _first_picture(plan: Plan) -> NDArray[np.uint8] | None:
    """The first image as it is shown; None if it cannot be read, or if there are none."""
    try:
        return plan.feed.of(plan.site.wrt).pixels(0)
    except ErfscopeError:
        # Of a shard it may be an image of another one, and unreadable ones are named elsewhere.
        if not plan.settings.keep_going:
            raise
        return None


def unusual_values(plan: Plan) -> Iterator[Finding]:
    """The finding on images whose values are not what the model takes, by the first of them."""
    reference = plan.site.wrt
    with contextlib.suppress(ErfscopeError):  # Unreadable ones are named elsewhere.
        if text := plan.feed.of(reference).remark(plan.model.adapter.preprocess.of(reference)):
            yield Finding(code="value_range", text=text)


def trf_of(plan: Plan, number: int) -> Trf:
    """The theoretical receptive field of a unit, with what of its paths leaves the reference unseen."""
    trf = plan.trfs[number]
    boxes = zip(trf.local_box_px if trf.is_global else trf.box_px, trf.reference_px, strict=True)
    if not trf.center_px or all(first >= 0 and last < size for (first, last), size in boxes):
        return trf
    shares = plan.site.path_shares(plan.question.units[number].index)
    unseen = [
        0.0 if each is None else unseen_share(trf, each.inside, each.outside, axis) for axis, each in enumerate(shares)
    ]
    return replace(trf, unseen_share=tuple(unseen))


def pending_result(plan: Plan, number: int, picture: NDArray[np.uint8] | None = None) -> Result:
    """The result of one unit before the first image; ``picture`` shows that."""
    trf, unit, settings, adapter = trf_of(plan, number), plan.question.units[number], plan.settings, plan.model.adapter
    method = settings.method if isinstance(settings.method, str) else getattr(settings.method, "__name__", "custom")
    layer, kind = split_kind(plan.site.layer)
    record = UnitRecord(
        index=unit.index,
        center_px=trf.center_px,
        center_exact=trf.center_exact,
        stride_px=trf.stride_px,
        map_shape=plan.site.shape[1:],
        kind=kind,
    )
    return Result(
        id=slug(plan.model.label, layer, record.slug, input_name(settings.wrt)),
        label=plan.model.label,
        model=adapter.spec,
        status="ok",
        weights=adapter.weights,
        insert=plan.model.insert,
        alpha=plan.model.alpha,
        picture=picture,
        input=_input_record(plan),
        layer=layer,
        wrt=settings.wrt,
        unit=record,
        convention=plan.question.convention.name,
        method=method,
        scale=plan.question.convention.scale,
        options=settings.recorded() | plan.shown.axes.recorded,
        trf=trf,
        seed=settings.seed,
        dtype=str(plan.model.adapter.dtype).removeprefix("torch."),
        amp_dtype=plan.settings.amp_dtype,
        device=str(next((p.device for p in adapter.module.parameters()), "cpu")),
        computed=_computed(plan, number),
    )


def _part(plan: Plan, sums: Sums, number: int) -> PartialSums:
    average = sums.averages[number]
    lost = {*average.zero_gradient_images, *average.nan_images, *sums.unreadable}
    return PartialSums(
        average=average,
        n_all=plan.feed.n,
        seen=sums.seen,
        unreadable=tuple(sums.unreadable),
        names={index: plan.feed.of(plan.site.wrt).name(index) for index in sorted(lost)},
        # Shown only where no image has a gradient.
        zero_cause=_zero_cause(plan) if average.zero_gradient_images and not average.groups else None,
        nan_cause=_not_finite(plan) if average.nan_images and not average.groups else None,
        ratio=1.0 if plan.question.convention.random and average.groups else sums.ratios.get(number),
        text=plan.feed.of(plan.site.wrt).text,
        measures=tuple(plan.settings.measure_names(axes_of(plan, number))),
        hops=_hops(plan, plan.trfs[number]),
        shard=plan.shard,
        # Only erfscope's own conventions are known where a run goes on.
        stopped=sums.stopped and CONVENTIONS.get(plan.question.convention.name) == plan.question.convention,
        enough=plan.settings.until_se if sums.is_precise_enough else None,
    )


def _findings(plan: Plan, sums: Sums, report: RunReport, number: int) -> Iterator[Finding]:
    """The findings of a result that its map does not show."""
    wanted, n = plan.settings.samples, plan.feed.n
    if wanted is not None and n < wanted:
        text = f"{wanted} samples were asked for, and there {'is one image' if n == 1 else f'are {n} images'}"
        yield Finding(code="fewer_images", text=text)
    yield from _too_uncertain(plan, sums, number)
    yield from of_site(plan.site, plan.trfs[number])
    yield from _one_by_one(plan)
    yield from report.image_findings
    yield from report.weights_findings
    yield from of_model(plan.model.adapter, plan.site.wrt, plan.shown)
    if (path_text := plan.model.needed_numbers(plan.site)) is not None:
        yield Finding(code="needed_numbers", text=path_text)
    yield from _unproved(plan)
    if plan.question.place is not None:
        seen = plan.model.references(plan.site.layer)
        if others := ", ".join(name for name in plan.model.recording.inputs if name not in seen):
            layer = split_kind(plan.site.layer)[0]
            yield Finding(code="model", text=f"{layer} does not depend on {others}, which has no map and no share")
    if sums.batch_size < sums.planned:
        text = (
            f"a batch of {sums.planned} images did not fit into memory: they were measured {sums.batch_size} at a time"
        )
        yield Finding(code="smaller_batches", text=text)
    yield from (Finding(code="dead_attention", text=f"{text} (first image)") for text in report.observed)


def _unproved(plan: Plan) -> Iterator[Finding]:
    """A finding where operations before the unit may have gradients that are not their derivatives, and --trust has
    not compared them."""
    settings = plan.settings
    if settings.trust or settings.method != "gradient":
        return
    if unproved := list(unproved_operations(plan.site)):
        more = f" and {len(unproved) - 3} more" if len(unproved) > 3 else ""
        text = (
            f"the gradient may not be the model's derivative ({', '.join(unproved[:3])}{more}): --trust tells whether"
            " that matters"
        )
        yield Finding(code="gradient_unproved", text=text)


def _computed(plan: Plan, number: int) -> Computed:
    if plan.plain_reason is not None:
        size, (whole, _) = plan.model.adapter.preprocess.size, plan.cropped_gmacs[0]
        return Computed(path="plain", because=plan.plain_reason, share=1.0, gmacs=whole, input_size=size)
    place = number if len(plan.crops) > 1 else 0
    crop, (gmacs, whole) = plan.crops[place], plan.cropped_gmacs[place]
    share = gmacs / whole if whole else 1.0
    return Computed(path="graph", because="", share=min(share, 1.0), gmacs=gmacs, input_size=sides(crop.image))


def _one_by_one(plan: Plan) -> Iterator[Finding]:
    """Why images were measured one at a time, where no operation mixes them."""
    site, recording = plan.site, plan.model.recording
    if recording.draws_random_numbers:
        text = f"identical passes may differ: the model draws random numbers in its forward pass; {ONE_BY_ONE}"
        yield Finding(code="not_repeatable", text=text)
    elif recording.takes_one_image or site.batch_mixing:
        return
    elif site.needs_numbers:
        why = "the path through the model may depend on the other images"
        yield Finding(code="one_by_one", text=f"{ONE_BY_ONE}: {why}")
    elif plan.settings.method == "gradient" and (why := recording.mixed_gradients):
        text = f"{ONE_BY_ONE}: {why}, which may carry the gradient of one image to another"
        yield Finding(code="one_by_one", text=text)


def _hops(plan: Plan, trf: Trf) -> FloatArray | None:
    """Hops along a block's graph, from the node nearest the unit's centre; None for references that are no such
    graph."""
    space = trf.reference_px
    if not trf.center_px:
        return None
    node = tuple(min(max(math.floor(c + 0.5), 0), side - 1) for c, side in zip(trf.center_px, space, strict=True))
    return plan.model.adapter.hops(plan.site.wrt, space, node)


def _zero_cause(plan: Plan) -> str | None:
    """The operation that lets no gradient through to the unit, and what to do; None where there is none."""
    if plan.model.recording.graph.by == UNRECORDED:
        return f"{plan.model.recording.needed_numbers}, and a gradient may end where its operations leave PyTorch"
    if is_input(plan.site.wrt) and plan.model.adapter.preprocess.axes.cell == TOKENS:
        modules = plan.model.adapter.module.named_modules()
        name = next((name for name, each in modules if isinstance(each, torch.nn.Embedding)), "NAME")
        return f"token ids have no gradient; measure with respect to what embeds them: wrt={name!r} (--wrt {name})"
    if (cut := gradient_cut(plan.site)) is None:
        return None
    operation, is_switched_off = cut
    if is_switched_off:
        return f"{operation} runs without gradients, as under torch.no_grad(); take that out of the forward pass"
    return f"{operation} has no gradient; take it out, or measure a layer before it"


def _not_finite(plan: Plan) -> str:
    """Why a gradient is not finite, and what to do."""
    tensors = (*plan.model.adapter.module.named_parameters(), *plan.model.adapter.module.named_buffers())
    bad = [name for name, tensor in tensors if not bool(torch.isfinite(tensor).all())]
    cause = f"weights are not finite in {', '.join(bad[:3])}" if bad else "the model's output or gradient is not finite"
    return cause + ("; load other weights" if bad else "; try --dtype float64 or other weights")


def half_mass_radius(erf: ErfMap, average: MapAccumulator) -> MeasureValue:
    """The radius that holds half of a map, with its error: r50, or centroid_r50 where the unit has no place."""
    name = "r50" if erf.center_px else "centroid_r50"
    return with_errors(erf, average.leave_one_out(), [name], groups=average.groups, spread=average.spread)[name]


def _too_uncertain(plan: Plan, sums: Sums, number: int) -> Iterator[Finding]:
    """A finding where the standard error asked for was not reached."""
    target, average = plan.settings.until_se, sums.averages[number]
    if target is None or not average.groups or sums.is_precise_enough or sums.stopped:
        return
    r50 = half_mass_radius(map_of(plan, sums, number), average)
    reached = r50.se / r50.value if r50.se is not None and isinstance(r50.value, float) and r50.value > 0 else None
    if reached is None or reached > target:
        noun = _input_record(plan).noun
        state = "is unknown" if reached is None else f"is {reached:.2%}"
        text = (
            f"the relative standard error of r50 {state} after all {sums.seen} {noun}s there are; {target:.2%} was"
            " asked for"
        )
        yield Finding(code="until_se", text=text)


def _input_record(plan: Plan) -> InputRecord:
    own, feed = plan.model.adapter.preprocess.of(plan.site.wrt), plan.feed.of(plan.site.wrt)
    shown = plan.shown
    return InputRecord(
        size=own.size,
        source=feed.kind,
        n_images=0,
        n_draws=plan.question.draws,
        sha256=feed.sha256,
        transform=shown.text,
        resize=shown.resize_text,
        scale=shown.scale_text,
        text_kind=feed.text_kind,
        axes=shown.axes,
    )


def failed(
    model: OpenModel, settings: Settings, feed: Images | None, error: ErfscopeError, *, layer: str = ""
) -> Result:
    """A row for a model that could not be measured, so that the other rows can still be printed."""
    preprocess = model.adapter.preprocess.of(settings.wrt)
    row = not_measured(model.label, model.adapter.spec, settings, error=error.reason)
    return replace(
        row,
        id=slug(model.label, layer or "failed"),
        weights=model.adapter.weights,
        insert=model.insert,
        alpha=model.alpha,
        input=replace(
            row.input,
            size=preprocess.size,
            source=feed.of(settings.wrt).kind if feed else "none",
            transform=preprocess.text,
            resize=preprocess.resize_text,
            scale=preprocess.scale_text,
        ),
        layer=layer,
    )


def not_measured(label: str, spec: str, settings: Settings, *, error: str) -> Result:
    """The same for a model that could not be loaded."""
    convention = convention_of(settings.convention)
    return Result(
        id=slug(label, "failed"),
        label=label,
        model=spec,
        status="error",
        error=error,
        weights=Weights(source="unknown"),
        input=InputRecord(size=(), source="none", n_images=0, n_draws=0),
        layer="",
        wrt=settings.wrt,
        unit=None,
        convention=convention.name,
        method=settings.method if isinstance(settings.method, str) else "custom",
        scale=convention.scale,
        options=settings.recorded(),
        seed=settings.seed,
        dtype=settings.dtype,
    )
