"""From what a run has summed up to a result: the map, its measures, its status and what must be said about it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erfscope.attribution.bn_folding import Folding
from erfscope.attribution.convention import CONVENTIONS, Convention, convention_of
from erfscope.attribution.gradient import Draws
from erfscope.cone.cone import Cone
from erfscope.engine.model import LoadedModel
from erfscope.environment import versions
from erfscope.errors import ErfscopeError
from erfscope.failures.cause import cause_of
from erfscope.finding import Finding
from erfscope.geometry.box import Box, around, sides
from erfscope.geometry.receptive_field import Trf
from erfscope.geometry.unit import Unit
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures import with_errors
from erfscope.options.settings import Settings
from erfscope.parallel import SINGLE, ProcessGroup
from erfscope.parallel.shard import Shard, parse
from erfscope.results import from_sums
from erfscope.results.findings import of_model, of_recording
from erfscope.results.partial import PartialSums
from erfscope.results.result import ConeRecord, InputRecord, Result, UnitRecord, slug, with_provenance
from erfscope.stimuli.feed import Feed

#: From this many passes, forward and backward, folding saves more time than it takes: on resnet50 58 ms against 12 ms each.
FOLDING_PAYS = 8


@dataclass(kw_only=True)
class Run:
    """The state of one measurement: what is asked, and what has been seen so far. Lists have one entry per unit."""

    subject: LoadedModel
    feed: Feed
    settings: Settings
    convention: Convention
    layer: str
    units: list[Unit]
    trfs: list[Trf]
    averages: list[MapAccumulator]
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
    #: What is to be said of the weights that were measured.
    weights_said: tuple[Finding, ...] = ()
    #: What is to be said of passes that differ, and of images that see each other by what no recorded pass shows.
    probed: tuple[Finding, ...] = ()
    #: What a forward pass on the first picture showed, in sentences.
    observed: tuple[str, ...] = ()
    #: Who shares the run.
    team: ProcessGroup = SINGLE
    #: How many of the run's pictures were seen, by all ranks, from the first one on.
    seen: int = 0
    #: Whether somebody stopped the run, and whether the error asked for was reached before the last picture.
    stopped: bool = False
    sufficed: bool = False
    #: How far a cone's map was from the whole pass's, in relative L1, where that was asked for.
    difference: float | None = None
    #: On how many inputs the cones were compared with the whole pass because the recorded operations do not show them to be exact.
    checked_on: int = 0
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        #: Index of a picture -> (1, C_in, *space), the part of it that is needed, on the CPU.
        self.source: Callable[[int], Tensor] = lambda index: self.feed.batch([index], self.box)

    @cached_property
    def folding(self) -> Folding | None:
        """Norms folded into convolutions, made once; None where that would not pay."""
        folds = self.cones[0].folds if self.cones else ()
        passes = math.inf if self.draws == "all" else self.feed.n * (1 + self.draws)
        return Folding(self.subject.adapter.module, folds) if folds and passes >= FOLDING_PAYS else None

    @property
    def shard(self) -> Shard | None:
        """Which of several equal parts of the pictures is measured; None for all of them."""
        return None if self.settings.shard is None else parse(self.settings.shard)

    @property
    def indices(self) -> range:
        """The pictures to measure."""
        return range(self.feed.n) if self.shard is None else self.shard.indices(self.feed.n)

    @property
    def box(self) -> Box | None:
        """The part of every image that is needed; None for all of it."""
        return None if self.cones is None else around([cone.image for cone in self.cones])


def map_of(run: Run, number: int) -> ErfMap:
    """The map of one unit so far."""
    trf = run.trfs[number]
    return from_sums.map_of(run.averages[number], trf, run.convention.scale, run.subject.adapter.preprocess.size)


def build_result(run: Run, number: int) -> Result:
    """The result of one unit from what was seen."""
    result = replace(pending_result(run, number), picture=_first_picture(run) if number == 0 else None)
    part = _part(run, number)
    result = from_sums.result_from_sums(result, part, cause=lambda: _not_finite(run), said=tuple(_said(run, number, part)))
    return with_provenance(replace(result, seconds=time.perf_counter() - run.started), versions())


def _first_picture(run: Run) -> NDArray[np.uint8] | None:
    """The first picture as it is shown; None if it cannot be read, or if there are none."""
    try:
        return run.feed.pixels(0)
    except ErfscopeError:
        # Of a shard it may be a picture of another one, and unreadable ones are named elsewhere.
        if not run.settings.keep_going:
            raise
        return None


def pending_result(run: Run, number: int) -> Result:
    """The result of one unit before anything was seen: all that is known of it."""
    trf, unit, settings, adapter = run.trfs[number], run.units[number], run.settings, run.subject.adapter
    method = settings.method if isinstance(settings.method, str) else getattr(settings.method, "__name__", "custom")
    return Result(
        id=slug(run.subject.label, run.layer, unit.slug),
        label=run.subject.label,
        model=adapter.spec,
        status="ok",
        weights=adapter.weights,
        insert=run.subject.insert,
        alpha=run.subject.alpha,
        input=_input_record(run),
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
        seed=settings.seed,
        dtype=_dtype(run),
        amp_dtype=run.settings.amp_dtype,
        device=_device(run),
        cone=_cone_record(run, number),
    )


def _part(run: Run, number: int) -> PartialSums:
    average = run.averages[number]
    lost = {*average.dead, *average.broken, *run.unreadable}
    return PartialSums(
        average=average,
        n_all=run.feed.n,
        seen=run.seen,
        unreadable=tuple(run.unreadable),
        names={index: run.feed.name(index) for index in sorted(lost)},
        ratio=run.ratios.get(number),
        text=run.feed.text,
        measures=tuple(run.settings.measure_names()),
        hops=_hops(run, run.trfs[number]),
        shard=run.shard,
        # Only erfscope's own conventions are known where a run goes on.
        stopped=run.stopped and CONVENTIONS.get(run.convention.name) == run.convention,
        enough=run.settings.until_se if run.sufficed else None,
    )


def _said(run: Run, number: int, part: PartialSums) -> Iterator[Finding]:
    """What must be said of a result beside what its map shows."""
    yield from _unsettled(run, number, part.seen)
    yield from of_recording(run.subject.recording, run.trfs[number], run.layer, run.settings.wrt)
    yield from run.probed
    yield from run.weights_said
    yield from of_model(run.subject.adapter, normalised=run.feed.kind != "tensor")
    yield from (*_coarse(run, number), *_uncropped(run, number), *_recorded(run), *_halved(run), *_observed(run))


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
        checked_on=0 if cone.is_whole else run.checked_on,
    )


def _uncropped(run: Run, number: int) -> Iterator[Finding]:
    """That a crop was compared with the whole pass and did not agree."""
    if run.cones is not None and run.cones[number].refuted and run.cones[number].is_whole:
        yield Finding(code="uncropped", text=f"computed without the cone: {run.cones[number].reason}")


def _device(run: Run) -> str:
    return str(next((p.device for p in run.subject.adapter.module.parameters()), "cpu"))


def _dtype(run: Run) -> str:
    """The dtype it was computed in: a live module's own, whatever the settings say."""
    used = next((p.dtype for p in run.subject.adapter.module.parameters() if p.is_floating_point()), None)
    return run.settings.dtype if used is None else str(used).removeprefix("torch.")


def _hops(run: Run, trf: Trf) -> FloatArray | None:
    """Hops along a block's graph, from the node nearest the unit's centre; None for references that are no such graph."""
    space = trf.reference_px
    node = tuple(min(max(math.floor(c + 0.5), 0), side - 1) for c, side in zip(trf.center_px, space, strict=True))
    return run.subject.adapter.hops(run.settings.wrt, space, node)


def _not_finite(run: Run) -> str:
    """Why a gradient is not finite, and what to do."""
    tensors = (*run.subject.adapter.module.named_parameters(), *run.subject.adapter.module.named_buffers())
    bad = [name for name, tensor in tensors if not bool(torch.isfinite(tensor).all())]
    cause = f"weights are not finite in {', '.join(bad[:3])}" if bad else "the model's output or gradient is not finite"
    return cause + ("; load other weights" if bad else "; try --dtype float64 or other weights")


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


def _unsettled(run: Run, number: int, seen: int) -> Iterator[Finding]:
    """That the standard error asked for was not reached."""
    target, average = run.settings.until_se, run.averages[number]
    if target is None or not average.groups or run.sufficed or run.stopped:
        return
    r50 = with_errors(map_of(run, number), average.leave_one_out(), ["r50"], groups=average.groups)["r50"]
    reached = r50.se / r50.value if r50.se is not None and isinstance(r50.value, float) and r50.value > 0 else None
    if reached is None or reached > target:
        state = "is unknown" if reached is None else f"is {reached:.2%}"
        text = f"the relative standard error of r50 {state} after all {seen} images there are; {target:.2%} was asked for"
        yield Finding(code="until_se", text=text)


def _input_record(run: Run) -> InputRecord:
    return InputRecord(
        size=run.subject.adapter.preprocess.size,
        source=run.feed.kind,
        n_images=0,
        n_draws=run.draws,
        sha256=run.feed.sha256,
        transform=run.feed.transform(run.subject.adapter.preprocess.text),
    )


def failed(subject: LoadedModel, settings: Settings, feed: Feed | None, error: ErfscopeError, *, layer: str = "") -> Result:
    """A row for a model that could not be measured, so that the other rows can still be printed."""
    convention = convention_of(settings.convention)
    return Result(
        id=slug(subject.label, layer or "failed"),
        label=subject.label,
        model=subject.adapter.spec,
        status="error",
        error=str(error),
        error_cause=cause_of(error),
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
