"""From what a run has summed up to a result: the map, its measures, its status and what must be said about it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from erfscope.attribution.folding import Folding
from erfscope.attribution.gradient import Draws
from erfscope.averaging import Averaging
from erfscope.box import Box, around, sides
from erfscope.cone.cone import Cone
from erfscope.convention import Convention, convention_of
from erfscope.environment import versions
from erfscope.erfmap import ErfMap
from erfscope.errors import ErfscopeError
from erfscope.feed import Feed
from erfscope.findings import findings
from erfscope.hops import HopProfile, profile
from erfscope.measures import with_errors
from erfscope.published import published
from erfscope.result import ConeRecord, Finding, InputRecord, Result, UnitRecord, slug, with_provenance
from erfscope.settings import Settings
from erfscope.subject import Subject
from erfscope.trf.field import Trf
from erfscope.unit import Unit

#: Rounding in bfloat16 is not a thousand times smaller than a gradient; what is this small there is noise all the same.
COARSE_FLOOR = 0.05
#: From this many passes, forward and backward, folding saves more time than it takes: on resnet50 58 ms against 12 ms each.
FOLDING_PAYS = 8


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
    #: What is computed for each unit; None where that is not planned.
    cones: list[Cone] | None = None
    unreadable: list[int] = field(default_factory=list)
    #: Gradient norm over that of a random-sign draw, per unit.
    ratios: dict[int, float] = field(default_factory=dict)
    draws: Draws = 1
    #: Pictures of a batch as planned, and as many as were found to fit into memory.
    planned: int = 1
    at_once: int = 1
    #: The first picture that a unit has not been given yet.
    counted: dict[int, int] = field(default_factory=dict)
    #: What autocast changes in each unit's map, in words, where it was asked for.
    amp_errors: list[str] = field(default_factory=list)
    #: What a forward pass on the first picture showed, in sentences.
    observed: tuple[str, ...] = ()
    #: How far a cone's map was from the whole pass's, in relative L1, where that was asked for.
    difference: float | None = None
    started: float = field(default_factory=time.perf_counter)

    @cached_property
    def folding(self) -> Folding | None:
        """Norms folded into convolutions, made once; None where that would not pay."""
        folds = self.cones[0].folds if self.cones else ()
        passes = math.inf if self.draws == "all" else self.feed.n * (1 + self.draws)
        return Folding(self.subject.adapter.module, folds) if folds and passes >= FOLDING_PAYS else None

    @property
    def box(self) -> Box | None:
        """The part of every image that is needed; None for all of it."""
        return None if self.cones is None else around([cone.image for cone in self.cones])


def map_of(run: Run, number: int) -> ErfMap:
    """The map of one unit so far."""
    trf = run.trfs[number]
    size = run.subject.adapter.preprocess.size
    return ErfMap(
        values=run.averages[number].values(),
        center_px=trf.center_px,
        stride_px=trf.stride_px,
        scale=run.convention.scale,
        # A reference without the input's time axis has its rows and columns.
        cell_px=tuple(whole / cells for whole, cells in zip(size[-len(trf.reference_px) :], trf.reference_px, strict=True)),
        trf=trf,
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
    found: tuple[Finding, ...] = ()
    if erf is not None:
        # Occluding patches reach beyond the field's edge; only a gradient outside it is a fault.
        leaked = average.leaked and settings.method == "gradient"
        normalised = run.feed.kind != "tensor"
        said = findings(erf, adapter=adapter, wrt=settings.wrt, n_images=average.n_images, leaked=leaked, normalised=normalised)
        found = (*_lost(run, average), *_unsettled(run, erf, average, seen), *said)
        found = (*found, *_coarse(run, number), *_uncropped(run, number), *_recorded(run), *_halved(run), *_observed(run))
    result = Result(
        id=slug(run.subject.label, run.layer, unit.slug),
        label=run.subject.label,
        model=adapter.spec,
        status=status,
        error=error,
        warnings=found,
        weights=adapter.weights,
        insert=run.subject.insert,
        alpha=run.subject.alpha,
        input=_input_record(run, average, seen),
        layer=run.layer,
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
        hops=None if erf is None else _hops(run, erf),
        frame_mass=None if erf is None else _frame_mass(erf),
        published=published(run.convention.name, average.raw()) if erf is not None else None,
        gradient_ratio=run.ratios.get(number, 0.0 if average.dead and not average.groups else None),
        seed=settings.seed,
        dtype=_dtype(run),
        amp_dtype=run.settings.amp_dtype,
        device=_device(run),
        cone=_cone_record(run, number),
        seconds=time.perf_counter() - run.started,
        picture=run.feed.pixels(0) if number == 0 and 0 not in run.unreadable else None,
    )
    return with_provenance(result, versions())


def _cone_record(run: Run, number: int) -> ConeRecord | None:
    if run.cones is None:
        return None
    cone = run.cones[number]
    return ConeRecord(
        share=cone.share,
        gmacs=cone.gmacs,
        input_size=sides(cone.image),
        shown_by=cone.shown_by,
        reason=cone.reason,
        difference=run.difference,
    )


def _uncropped(run: Run, number: int) -> Iterator[Finding]:
    """That a crop was possible and did not agree with the whole pass."""
    if run.cones is not None and run.cones[number].refuted and run.cones[number].is_whole:
        text = f"computed without the cone: {run.cones[number].reason}, and a comparison in float64 did not agree"
        yield Finding(code="uncropped", text=text)


def _device(run: Run) -> str:
    return str(next((p.device for p in run.subject.adapter.module.parameters()), "cpu"))


def _dtype(run: Run) -> str:
    """The dtype it was computed in: a live module's own, whatever the settings say."""
    used = next((p.dtype for p in run.subject.adapter.module.parameters() if p.is_floating_point()), None)
    return run.settings.dtype if used is None else str(used).removeprefix("torch.")


def _hops(run: Run, erf: ErfMap) -> HopProfile | None:
    """The map by hops along a block's graph, from the node nearest the unit's centre."""
    space = erf.values.shape
    node = tuple(min(max(math.floor(c + 0.5), 0), side - 1) for c, side in zip(erf.center_px, space, strict=True))
    distances = run.subject.adapter.hops(run.settings.wrt, space, node)
    return None if distances is None else profile(erf.magnitude, distances)


def _frame_mass(erf: ErfMap) -> tuple[float, ...] | None:
    """Share of the map in each frame of a (T, H, W) reference; None for other references."""
    return tuple(float(share) for share in erf.magnitude.sum(axis=(1, 2))) if erf.values.ndim == 3 else None


def _status(run: Run, number: int, seen: int) -> tuple[str, str | None]:
    """ok, degenerate or error, and why."""
    average = run.averages[number]
    if average.groups == 0 and len(average.dead) > len(average.broken):
        hint = "try another layer or unit" if run.convention.random else "try another layer, unit, or --convention jacobian"
        return "degenerate", f"the gradient is zero for {_count(average.dead, seen)}; {hint}"
    if average.groups == 0 and average.broken:
        tensors = (*run.subject.adapter.module.named_parameters(), *run.subject.adapter.module.named_buffers())
        bad = [name for name, tensor in tensors if not bool(torch.isfinite(tensor).all())]
        cause = f"weights are not finite in {', '.join(bad[:3])}" if bad else "the model's output or gradient is not finite"
        cause += "; load other weights" if bad else "; try --dtype float64 or other weights"
        return "error", f"{run.subject.label} gives NaN for {_count(average.broken, seen)}: {cause}"
    if average.groups == 0:
        return "error", f"none of the {seen} pictures could be read"
    ratio = run.ratios.get(number, 0.0)
    eps = torch.finfo(getattr(torch, run.settings.amp_dtype or _dtype(run))).eps
    if ratio < min(1e3 * eps, COARSE_FLOOR):
        text = f"the gradient is {ratio:.1e} of a random-sign draw's: rounding noise, not an ERF; use --convention jacobian"
        return "degenerate", text
    return "ok", None


def _count(images: list[int], seen: int) -> str:
    return f"all {seen} images" if len(images) == seen else f"{len(images)} of {seen} images and none of the others can be used"


def _lost(run: Run, average: Averaging) -> Iterator[Finding]:
    """What was left out of the map, by name."""
    for code, images, text in (
        ("dead_images", average.dead, "a gradient of zero"),
        ("nan_images", average.broken, "a gradient that is not finite"),
        ("unreadable_images", run.unreadable, "pixels that cannot be read"),
    ):
        if images:
            names = ", ".join(run.feed.name(index) for index in images[:3]) + (", ..." if len(images) > 3 else "")
            yield Finding(code=code, text=f"{len(images)} image{'s' * (len(images) != 1)} with {text} left out: {names}")


def _recorded(run: Run) -> Iterator[Finding]:
    """That the theoretical field holds for one path through a data-dependent model."""
    text = run.subject.needed_numbers
    if text is not None:
        yield Finding(code="needed_numbers", text=text)


def _observed(run: Run) -> Iterator[Finding]:
    """Parts of the model that get no gradient on the first picture."""
    yield from (Finding(code="dead_attention", text=f"{text} (first picture)") for text in run.observed)


def _coarse(run: Run, number: int) -> Iterator[Finding]:
    """What autocast changes in the map."""
    if run.amp_errors:
        yield Finding(code="amp_error", text=run.amp_errors[number])


def _halved(run: Run) -> Iterator[Finding]:
    """That batches were made smaller, which takes longer and changes nothing."""
    if run.at_once < run.planned:
        text = f"a batch of {run.planned} pictures did not fit into memory: they were measured {run.at_once} at a time"
        yield Finding(code="smaller_batches", text=text)


def _unsettled(run: Run, erf: ErfMap, average: Averaging, seen: int) -> Iterator[Finding]:
    """That the standard error asked for was not reached."""
    target = run.settings.until_se
    if target is None:
        return
    r50 = with_errors(erf, average.leave_one_out(), ["r50"], groups=average.groups)["r50"]
    reached = r50.se / r50.value if r50.se is not None and isinstance(r50.value, float) and r50.value > 0 else None
    if reached is None or reached > target:
        state = "is unknown" if reached is None else f"is {reached:.2%}"
        text = f"the relative standard error of r50 {state} after all {seen} images there are; {target:.2%} was asked for"
        yield Finding(code="until_se", text=text)


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
        transform=run.feed.transform(run.subject.adapter.preprocess.text),
        text=run.feed.text if seen == run.feed.n else f"the first {seen} of {run.feed.text}",
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
        insert=subject.insert,
        alpha=subject.alpha,
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
