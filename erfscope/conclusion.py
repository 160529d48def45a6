"""From what a run has summed up to a result: the map, its measures, its status and what must be said about it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from erfscope.averaging import Averaging
from erfscope.convention import Convention, convention_of
from erfscope.erfmap import ErfMap
from erfscope.errors import ErfscopeError
from erfscope.feed import Feed
from erfscope.findings import findings
from erfscope.measures import with_errors
from erfscope.published import published
from erfscope.result import InputRecord, Result, UnitRecord, slug
from erfscope.settings import Settings
from erfscope.subject import Subject
from erfscope.trf.field import Trf
from erfscope.unit import Unit


@dataclass(kw_only=True)
class Run:
    """The state of one measurement: what is asked, and what has been seen so far. Lists have one entry per unit."""

    subject: Subject
    feed: Feed
    settings: Settings
    convention: Convention
    layer: str
    units: list[Unit]
    trfs: list[Trf]
    averages: list[Averaging]
    unreadable: list[int] = field(default_factory=list)
    #: Gradient norm over that of a random-sign draw, per unit.
    ratios: dict[int, float] = field(default_factory=dict)
    draws: int | str = 1
    started: float = field(default_factory=time.perf_counter)


def map_of(run: Run, number: int) -> ErfMap:
    """The map of one unit so far."""
    trf = run.trfs[number]
    size = run.subject.adapter.preprocess.size
    return ErfMap(
        values=run.averages[number].values(),
        center_px=trf.center_px,
        stride_px=trf.stride_px,
        scale=run.convention.scale,
        cell_px=tuple(whole / cells for whole, cells in zip(size, trf.reference_px, strict=True)),
        trf=trf,
        provenance={
            "model": run.subject.adapter.spec,
            "weights": run.subject.adapter.weights.source,
            "layer": run.layer,
            "wrt": run.settings.wrt,
            "unit": run.units[number].index,
            "convention": run.convention.name,
            "input": run.feed.text,
            "seed": run.settings.seed,
        },
    )


def conclude(run: Run, number: int, seen: int) -> Result:
    """The result of one unit after ``seen`` images."""
    average, trf, unit, settings, adapter = run.averages[number], run.trfs[number], run.units[number], run.settings, run.subject.adapter
    status, error = _status(run, number, seen)
    erf = map_of(run, number) if average.groups else None
    measures = {}
    if erf is not None:
        measures = with_errors(erf, average.leave_one_out(), settings.measure_names(), groups=average.groups)
    method = settings.method if isinstance(settings.method, str) else getattr(settings.method, "__name__", "custom")
    found = (
        () if erf is None else findings(erf, measures, adapter=adapter, wrt=settings.wrt, n_images=average.n_images, leaked=average.leaked)
    )
    return Result(
        id=slug(run.subject.label, run.layer, unit.slug),
        label=run.subject.label,
        model=adapter.spec,
        status=status,
        error=error,
        warnings=found,
        weights=adapter.weights,
        input=_input_record(run, average, seen),
        layer=run.layer,
        layer_chosen=settings.layer is None and not adapter.stages,
        wrt=settings.wrt,
        unit=UnitRecord(
            index=unit.index,
            center_px=trf.center_px,
            center_exact=trf.center_exact,
            stride_px=trf.stride_px,
            map_shape=tuple(run.subject.layer(run.layer).shape[1:]),
        ),
        convention=run.convention.name,
        method=method,
        scale=run.convention.scale,
        trf=trf,
        measures=measures,
        se_over=average.over,
        map=erf,
        published=published(run.convention.name, average.raw()) if erf is not None else None,
        gradient_ratio=run.ratios.get(number),
        seed=settings.seed,
        dtype=settings.dtype,
        device=_device(run),
        seconds=time.perf_counter() - run.started,
        picture=run.feed.pixels(0) if number == 0 and 0 not in run.unreadable else None,
    )


def _device(run: Run) -> str:
    return str(next((p.device for p in run.subject.adapter.module.parameters()), "cpu"))


def _status(run: Run, number: int, seen: int) -> tuple[str, str | None]:
    """ok, degenerate or error, and why."""
    average, label = run.averages[number], run.subject.label
    ratio = run.ratios.get(number, 0.0)
    used = run.settings.amp_dtype or run.settings.dtype
    floor = 1e3 * torch.finfo(getattr(torch, used)).eps
    if average.groups == 0 and average.broken:
        bad = [name for name, p in run.subject.adapter.module.named_parameters() if not bool(torch.isfinite(p).all())]
        cause = f"weights are not finite in {', '.join(bad[:3])}" if bad else "the model's output or gradient is not finite"
        return "error", f"all {seen} images give NaN on {label}: {cause}"
    if average.groups == 0 and len(run.unreadable) == seen:
        return "error", f"none of the {seen} pictures could be read"
    if average.groups == 0:
        return "degenerate", f"the gradient is zero for all {seen} images; try another layer, unit, or --convention jacobian"
    if ratio < floor:
        text = f"the gradient is {ratio:.1e} of a random-sign draw's: rounding noise, not an ERF; use --convention jacobian"
        return "degenerate", text
    return "ok", None


def _input_record(run: Run, average: Averaging, seen: int) -> InputRecord:
    lost = sorted({*average.dead, *average.broken, *run.unreadable})
    return InputRecord(
        size=run.subject.adapter.preprocess.size,
        source=run.feed.kind,
        n_images=seen,
        n_draws=run.draws,
        n_dead=len(lost),
        dead=tuple(run.feed.name(index) for index in lost[:20]),
        sha256=run.feed.sha256,
        transform=run.subject.adapter.preprocess.text,
        text=run.feed.text,
    )


def failed(subject: Subject, settings: Settings, feed: Feed | None, error: ErfscopeError, *, layer: str = "") -> Result:
    """A row for a model that could not be measured, so that the other rows can still be printed."""
    convention = convention_of(settings.convention)
    return Result(
        id=slug(subject.label, layer or "failed"),
        label=subject.label,
        model=subject.adapter.spec,
        status="error",
        error=str(error),
        weights=subject.adapter.weights,
        input=InputRecord(
            size=subject.adapter.preprocess.size,
            source=feed.kind if feed else "none",
            n_images=0,
            n_draws=0,
            transform=subject.adapter.preprocess.text,
        ),
        layer=layer,
        wrt=settings.wrt,
        unit=None,
        convention=convention.name,
        method=settings.method if isinstance(settings.method, str) else "custom",
        scale=convention.scale,
        seed=settings.seed,
        dtype=settings.dtype,
    )
