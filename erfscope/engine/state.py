"""The state of a run: its plan, its sums so far, what it calls as it goes on, and what it finds out about itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from erfscope.attribution.bn_folding import Folding
from erfscope.attribution.convention import Convention
from erfscope.attribution.gradient import Draws
from erfscope.cone.cone import Cone
from erfscope.engine.model import LoadedModel
from erfscope.finding import Finding
from erfscope.geometry.box import Box, around
from erfscope.geometry.receptive_field import Trf
from erfscope.geometry.unit import Unit
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap
from erfscope.options.settings import Settings
from erfscope.parallel import SINGLE, ProcessGroup
from erfscope.parallel.shard import Shard, parse
from erfscope.results import from_sums
from erfscope.stimuli.feed import Feed

#: From this many passes, forward and backward, folding saves clearly more time than it and the comparison that it needs
#: take: on resnet50 58 ms and two forward passes against 12 ms each.
FOLDING_PAYS = 8

#: Index of an image -> (1, C_in, *space), the part of it that is needed, on the CPU.
Source = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What is called while a run goes on; by default nothing is done."""

    #: Called after every batch with (images done, images in all).
    progress: Callable[[int, int], None] = lambda _done, _total: None
    #: Called after every batch; true where the run is to end with what it has.
    stop: Callable[[], bool] = lambda: False
    #: Called before the first image with a line that says how much memory the run will take.
    tell: Callable[[str], None] = lambda _line: None


NO_HOOKS = Hooks()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one measurement computes. Lists have one entry per unit."""

    model: LoadedModel
    feed: Feed
    settings: Settings
    convention: Convention
    layer: str
    units: list[Unit]
    trfs: list[Trf]
    #: What is computed for each unit; None where that is not planned.
    cones: list[Cone] | None = None
    draws: Draws = 1
    #: Who shares the run.
    process_group: ProcessGroup = SINGLE

    @cached_property
    def folding(self) -> Folding | None:
        """Norms folded into convolutions, made once; None where that would not pay."""
        folds = self.cones[0].folds if self.cones else ()
        passes = math.inf if self.draws == "all" else self.feed.n * (1 + self.draws)
        return Folding(self.model.adapter.module, folds) if folds and passes >= FOLDING_PAYS else None

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
        return None if self.cones is None else around([cone.image for cone in self.cones])

    def read(self, index: int) -> Tensor:
        """Return the part of an image that is needed, (1, C_in, *space), on the CPU."""
        return self.feed.batch([index], self.box)

    def averages(self) -> list[MapAccumulator]:
        """Return an empty average for every unit."""
        return [MapAccumulator(self.convention, self.feed.n, trf.reference_px, trf) for trf in self.trfs]


@dataclass(kw_only=True)
class Sums:
    """What was summed up so far. Lists have one entry per unit."""

    averages: list[MapAccumulator]
    unreadable: list[int] = field(default_factory=list)
    #: Gradient norm over that of a random-sign draw, per unit.
    ratios: dict[int, float] = field(default_factory=dict)
    #: Images of a batch as planned, and as many as were found to fit into memory.
    planned: int = 1
    at_once: int = 1
    #: The first image that a unit has not been given yet.
    counted: dict[int, int] = field(default_factory=dict)
    #: How many of the run's images were seen, by all ranks, from the first one on.
    seen: int = 0
    #: Whether somebody stopped the run, and whether the error asked for was reached before the last image.
    stopped: bool = False
    is_precise_enough: bool = False
    #: The order of memory of batches whose norms are folded; None for passes as the model makes them, where no
    #: comparison with one is made.
    faster: torch.memory_format | None = None
    #: By unit an image, and the norm of its gradient with random signs, where that was taken before the batch that it
    #: is in.
    noise: dict[int, tuple[int, float]] = field(default_factory=dict)
    #: Says what is wrong with a batch whose first image has this map (1, C, *space); None where that is known.
    first_batch_check: Callable[[Tensor], Finding | None] | None = None
    #: Passes that differ, and images that see each other by what no recorded pass shows.
    repeatability: tuple[Finding, ...] = ()
    started: float = field(default_factory=time.perf_counter)

    @property
    def is_random(self) -> bool:
        """Whether passes of one image differ, or may."""
        return any(finding.code == "not_repeatable" for finding in self.repeatability)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What is to be said of a run when all is summed up."""

    #: What autocast changes in each unit's map, in words, where it was asked for.
    amp_errors: tuple[str, ...] = ()
    #: Findings about the weights that were measured.
    weights_findings: tuple[Finding, ...] = ()
    #: What a forward pass on the first image showed, in sentences.
    observed: tuple[str, ...] = ()


def map_of(plan: Plan, sums: Sums, number: int) -> ErfMap:
    """Return the map of one unit so far."""
    return from_sums.map_of(
        sums.averages[number], plan.trfs[number], plan.convention.scale, plan.model.adapter.preprocess.size
    )
