"""The state of a run: its plan, its sums so far, what it calls as it goes on, and what it finds out about itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from erfscope.attribution.convention import Convention
from erfscope.attribution.gradient import Draws
from erfscope.engine.cost import cropped_giga_multiply_adds, pass_bytes
from erfscope.engine.gradient_path import may_cancel
from erfscope.engine.model import LoadedModel
from erfscope.engine.running_sums import RunningSums
from erfscope.finding import Finding
from erfscope.geometry.box import Box, around
from erfscope.geometry.receptive_field import Trf
from erfscope.geometry.unit import Unit
from erfscope.graph.run import Crop, Forward
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap
from erfscope.options.settings import Settings
from erfscope.parallel import SINGLE, ProcessGroup
from erfscope.parallel.shard import Shard, parse
from erfscope.results import from_sums
from erfscope.stimuli.feed import Feed

#: Index of an image -> (1, C_in, *space), the part of it that is needed, on the CPU.
Source = Callable[[int], Tensor]


#: Below these multiply-adds (10^9) and bytes a pass of one image takes a millisecond, and one thread is as fast as two
#: that have nothing else to do.
SMALL_GMACS, SMALL_BYTES = 0.005, 2**20


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Callbacks of a run; by default they do nothing."""

    #: Called after every batch with (images done, images in all).
    progress: Callable[[int, int], None] = lambda _done, _total: None
    #: Called after every batch; true where the run is to end with what it has.
    stop: Callable[[], bool] = lambda: False
    #: Called before the first image with a line that says how much memory the run will take.
    tell: Callable[[str], None] = lambda _line: None


NO_HOOKS = Hooks()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one measurement. Lists have one entry per unit."""

    model: LoadedModel
    feed: Feed
    settings: Settings
    convention: Convention
    layer: str
    units: list[Unit]
    trfs: list[Trf]
    #: Why the model itself is run, and not its graph; "" where the graph is.
    plain: str
    draws: Draws = 1
    #: Who shares the run.
    process_group: ProcessGroup = SINGLE
    _passes: dict[int, list[Forward]] = field(default_factory=dict, init=False)

    @cached_property
    def crops(self) -> list[Crop]:
        """The operations that the units need of one image; none where the model itself is run."""
        if self.plain:
            return []
        return self.model.crops(self.layer, [unit.index for unit in self.units], self.settings.wrt)

    @cached_property
    def cropped_gmacs(self) -> list[tuple[float, float]]:
        """Multiply-adds of one image in 10^9, and those of the same operations whole: of each crop, or of the model."""
        crops = self.crops or [self.model.whole(self.layer, self.settings.wrt)]
        return [cropped_giga_multiply_adds(crop) for crop in crops]

    @property
    def is_small(self) -> bool:
        """Whether a pass takes no longer than threads that wait for each other."""
        taken, _ = max(self.cropped_gmacs)
        return taken < SMALL_GMACS and self.pass_bytes < SMALL_BYTES

    @cached_property
    def pass_bytes(self) -> int:
        """Bytes that the pass of one image takes."""
        return max(map(pass_bytes, self.crops or [self.model.whole(self.layer, self.settings.wrt)]))

    @cached_property
    def may_cancel(self) -> bool:
        """Whether the readout's gradient may be rounding noise, so that it is compared with one with random signs."""
        return not self.convention.random and may_cancel(self.model.recording, self.layer, self.settings.wrt)

    @cached_property
    def _weights(self) -> dict[str, Tensor]:
        return self.model.adapter.tensors()

    def passes(self, images: int, most: int) -> list[Forward]:
        """The passes of the graph for a batch of so many images, of at most ``most``, made once."""
        if images not in self._passes:
            indices, wrt = [unit.index for unit in self.units], self.settings.wrt
            crops = self.model.crops(self.layer, indices, wrt, images=images, most=most)
            self._passes[images] = [Forward(crop, self._weights) for crop in crops]
        return self._passes[images]

    @property
    def shard(self) -> Shard | None:
        """Which of several equal parts of the images is measured; None for all of them."""
        return None if self.settings.shard is None else parse(self.settings.shard)

    @property
    def indices(self) -> range:
        """The images to measure."""
        return range(self.feed.n) if self.shard is None else self.shard.indices(self.feed.n)

    @property
    def box(self) -> Box | None:
        """The part of every image that is needed; None for all of it."""
        return around([crop.image for crop in self.crops]) if self.crops else None

    def read(self, index: int) -> Tensor:
        """Return the part of an image that is needed, (1, C_in, *space), on the CPU."""
        return self.feed.batch([index], self.box)

    def sums(self, images: int | None = None) -> Sums:
        """Return empty sums, of so many images instead of all."""
        n = self.feed.n if images is None else images
        averages = (MapAccumulator(self.convention, n, trf.reference_px, trf) for trf in self.trfs)
        return Sums(running=[RunningSums(average) for average in averages])


@dataclass(kw_only=True)
class Sums:
    """The sums of a run so far. Lists have one entry per unit."""

    running: list[RunningSums]
    unreadable: list[int] = field(default_factory=list)
    #: Gradient norm over that of a random-sign draw, per unit.
    ratios: dict[int, float] = field(default_factory=dict)
    #: Images of a batch as planned, and as many as were found to fit into memory.
    planned: int = 1
    batch_size: int = 1
    #: How many of the run's images were seen, by all ranks, from the first one on.
    seen: int = 0
    #: Whether the run was stopped, and whether the error asked for was reached before the last image.
    stopped: bool = False
    is_precise_enough: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def averages(self) -> list[MapAccumulator]:
        """What was summed up so far."""
        return [each.average() for each in self.running]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Observations on a run that its sums do not hold."""

    #: For each unit, what autocast and TF32 change in its map, where they were asked for.
    precision_findings: Sequence[Sequence[Finding]] = ()
    #: Findings about the weights that were measured.
    weights_findings: tuple[Finding, ...] = ()
    #: What a forward pass on the first image showed, in sentences.
    observed: tuple[str, ...] = ()


def map_of(plan: Plan, sums: Sums, number: int) -> ErfMap:
    """Return the map of one unit so far."""
    return from_sums.map_of(
        sums.averages[number], plan.trfs[number], plan.convention.scale, plan.model.adapter.preprocess.size
    )
