"""Plans of one model whose units go through together: forward passes that serve several layers and references."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from torch import Tensor

from erfscope.core.graph.run import Crop, Forward
from erfscope.core.run.attribution.forward import GraphForward
from erfscope.core.run.attribution.gradient import AskedUnits, ReadPass
from erfscope.core.run.engine.cost import giga_multiply_adds_of, pass_bytes
from erfscope.core.run.engine.plan import Plan, Sums
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.unit import Box, around

#: Multiply-adds of a backward pass for each of the forward pass.
BACKWARD = 2
#: Below these multiply-adds (10^9) and bytes a pass of one image takes a millisecond, and one thread is as fast as two
#: that have nothing else to do.
SMALL_GMACS, SMALL_BYTES = 0.005, 2**20


class SharedRun:
    """Plans of one model, for the same images and with the same settings but for layer and reference. Units are
    numbered through, plan after plan.

    Args:
        plans: One, or a group of :func:`groups`.
    """

    def __init__(self, *plans: Plan) -> None:
        self.plans = plans
        first = plans[0]
        #: Of all plans; of the settings but for layer and reference.
        self.model, self.feed, self.settings = first.model, first.feed, first.settings
        self.process_group, self.indices = first.process_group, first.indices
        #: The theoretical receptive field of each unit.
        self.trfs = [trf for plan in plans for trf in plan.trfs]
        ends = itertools.accumulate(len(plan.trfs) for plan in plans)
        #: Of each plan the numbers of its units.
        self._numbers = [range(end - len(plan.trfs), end) for end, plan in zip(ends, plans, strict=True)]
        self._passes: dict[int, list[ReadPass]] = {}

    @cached_property
    def crops(self) -> list[Crop]:
        """The operations that the units need of one image; none where the model itself is run."""
        return _with_others(*(plan.crops for plan in self.plans))

    @cached_property
    def pass_bytes(self) -> int:
        """Bytes that the pass of one image takes."""
        return max(map(pass_bytes, self.crops or [self.model.whole(self.plans[0].site)]))

    @property
    def is_small(self) -> bool:
        """Whether a pass takes no longer than threads that wait for each other."""
        taken, _ = max(self.plans[0].cropped_gmacs)
        return taken < SMALL_GMACS and self.pass_bytes < SMALL_BYTES

    @cached_property
    def box(self) -> Box | None:
        """The part of every image that is needed; None for all of it."""
        return around([crop.image for crop in self.crops]) if self.crops else None

    def read(self, index: int) -> Tensor:
        """Return the part of an image that is needed, (1, C_in, *space), on the CPU."""
        return self.feed.batch([index], self.box)

    def passes(self, images: int, most: int) -> list[ReadPass]:
        """The forward passes of a batch of so many images, of at most ``most``, made once."""
        if not self.crops:
            (plan,) = self.plans
            units = plan.question.units
            return [(plan.model_forward, [AskedUnits(plan.question, units, range(len(units)), plan.may_cancel)])]
        if images not in self._passes:
            tensors, first = self.model.adapter.tensors(), [low for low, _ in self.box or ()]
            places, numbers = [plan.question.place for plan in self.plans], [*map(iter, self._numbers)]
            self._passes[images] = [
                (GraphForward(Forward(crop, tensors), first, places), [*self._reads(crop, numbers)])
                for crop in _with_others(*(plan.crops_of(images, most) for plan in self.plans))
            ]
        return self._passes[images]

    def _reads(self, crop: Crop, numbers: Sequence[Iterator[int]]) -> Iterator[AskedUnits]:
        """What is read of each target of a pass, which has its units in a row."""
        for plan, target, own in zip(self.plans, crop.targets, numbers, strict=True):
            like = plan.question.units[0]
            units = [replace(like, index=(place,)) for place in range(len(target.units))]
            yield AskedUnits(plan.question, units, [next(own) for _ in units], plan.may_cancel)

    def forget_passes(self) -> None:
        """Free the weights that passes of larger batches have derived, once one did not fit into memory."""
        self._passes.clear()

    def sums(self, own: Sequence[Sums]) -> Sums:
        """The sums of all plans, which have seen the same images, as those of one."""
        found = replace(own[0], running=[], ratios={})
        for numbers, sums in zip(self._numbers, own, strict=True):
            found.running += sums.running
            found.ratios |= {numbers[place]: ratio for place, ratio in sums.ratios.items()}
        return found

    def sums_of(self, sums: Sums) -> list[Sums]:
        """Of each plan its own of these sums."""
        return [
            replace(
                sums,
                running=[sums.running[number] for number in numbers],
                ratios={place: sums.ratios[number] for place, number in enumerate(numbers) if number in sums.ratios},
            )
            for numbers in self._numbers
        ]


def _with_others(crops: Sequence[Crop], *others: Sequence[Crop]) -> list[Crop]:
    """Crops of one plan, and what those of others need beside them."""
    joined = [*crops]
    for other in others:
        found = [crop.with_other(own) for crop, own in zip(joined, other, strict=True)]
        joined = [crop for crop in found if crop is not None]
        if len(joined) < len(found):
            raise MeasurementError("layers need other parts of several images than of one")
    return joined


def groups(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Plans that go through together, where that takes less than alone; the first of each makes most of what the others
    need.

    Source: the reverse pass of Griewank & Walther 2008, section 3.2: a gradient takes about twice the function.
    """
    left, found = sorted(plans, key=lambda each: -sum(taken for taken, _ in each.cropped_gmacs)), list[list[Plan]]()
    while left:
        first, *left = left
        group, crops = [first], first.crops
        for each in [*left] if may_share(first) else ():
            is_alike = may_share(each) and each.site.takes_batches == first.site.takes_batches
            if is_alike and (joined := _joined(crops, each.crops)):
                left.remove(each)
                group.append(each)
                crops = joined
        found.append(group)
    return found


def may_share(plan: Plan) -> bool:
    """Whether a plan is measured by the graph, and on all images."""
    return plan.plain_reason is None and plan.settings.until_se is None


def _joined(crops: Sequence[Crop], others: Sequence[Crop]) -> list[Crop] | None:
    """Crops with the operations that others need beside them; None where that takes no less than others alone."""
    if len(crops) != len(others):
        return None
    found, saved = list[Crop](), 0.0
    for crop, other in zip(crops, others, strict=True):
        if (both := crop.with_other(other)) is None:
            return None
        here, needed = {step.node for step in crop.steps}, {step.node for step in other.steps}
        forward = giga_multiply_adds_of(step for step in other.steps if step.node not in here)
        backward = giga_multiply_adds_of(step for step in both.steps if step.node in needed)
        saved += (1 + BACKWARD) * giga_multiply_adds_of(other.steps) - forward - BACKWARD * backward
        found.append(both)
    return found if saved > 0 else None
