"""The sums of one unit's contributions while a run goes on, where the model is computed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from erfscope.core.answer.maps.accumulator import GROUPS, MapAccumulator


class RunningSums:
    """Sums of contributions by group, on the part of the reference that the unit can see, on the device of the model.

    Args:
        average: What was summed up before. It is added to.
        next_image: Images before this one are in it, and passed over.
    """

    def __init__(self, average: MapAccumulator, next_image: int = 0) -> None:
        self.next_image = next_image
        self._average = average
        self._totals: dict[int, Tensor] = {}
        self._is_new = False

    def add(self, images: Sequence[int], draws: Sequence[Tensor], origin: Sequence[int] | None = None) -> None:
        """Add the contributions of a batch, image by image, so that its size changes no number.

        Args:
            images: Their global indices, ascending.
            draws: One (B, *part) in float64 for each draw, of the whole reference or a part of it that holds
                everything.
            origin: The first cell of that part along each axis; None if it is whole.
        """
        average = self._average
        mean = draws[0] if len(draws) == 1 else functools.reduce(operator.add, draws) / len(draws)
        parts = [mean, on_box(mean, average.box, origin)]
        if average.masses is not None and average.over == "draws":
            parts += draws
        # The only time that the device is waited for.
        numbers = torch.stack([torch.linalg.vector_norm(part.flatten(1), 1, dim=1) for part in parts]).tolist()
        for place, (image, total, inside, *by_draw) in enumerate(zip(images, *numbers, strict=True)):
            if image < self.next_image:
                continue
            if average.takes(image, total):
                if average.is_outside(total, inside):
                    self._give_up_box()
                here = slice(place, place + 1)
                if average.over == "draws":
                    for number, draw in enumerate(draws):
                        own = on_box(draw[here], average.box, origin)[0]
                        self._add(number % GROUPS, own / total if average.convention.per_image else own)
                        self._weigh(number % GROUPS, by_draw[number] / len(draws) if by_draw else 0.0)
                else:
                    own = on_box(mean[here], average.box, origin)[0]
                    self._add(average.group_of(image), own / total if average.convention.per_image else own)
                    self._weigh(average.group_of(image), total)
                # Last, so that an image for which there was no memory is not counted.
                average.n_images += 1
            self.next_image = image + 1

    def average(self) -> MapAccumulator:
        """The sums so far, in the machine's own memory. On the CPU they share memory with
        these, and go on to grow."""
        if self._is_new:
            totals = [*self._totals.values()]
            if totals[0].device.type != "cpu":
                totals = [*torch.stack(totals).cpu()]
            self._average.sums.sums |= {g: total.numpy() for g, total in zip(self._totals, totals, strict=True)}
            self._is_new = False
        return self._average

    def _add(self, group: int, contribution: Tensor) -> None:
        sums = self._average.sums
        if group not in self._totals:
            before = sums.sums.get(group)
            found = torch.zeros_like(contribution) if before is None else torch.from_numpy(before).to(contribution)
            self._totals[group] = found.clone(memory_format=torch.contiguous_format)
        self._totals[group] += contribution
        sums.counts[group] = sums.counts.get(group, 0.0) + 1
        self._is_new = True

    def _weigh(self, group: int, mass: float) -> None:
        if self._average.masses is not None:
            self._average.masses[group] = self._average.masses.get(group, 0.0) + mass

    def _give_up_box(self) -> None:
        """Something outside the box contributes: sum up whole maps from now on."""
        self.average().drop_box()
        self._totals.clear()


def on_box(values: Tensor, box: Sequence[slice], origin: Sequence[int] | None) -> Tensor:
    """The part of maps (B, *part) that lies on a box of the reference; zero where they do not reach.

    Args:
        values: The maps.
        box: Along each axis of the reference, with start and stop.
        origin: The first cell of the maps along each axis; None if they are whole.
    """
    here, there = [slice(None)], [slice(None)]
    for part, first, side in zip(box, origin or (0,) * len(box), values.shape[1:], strict=True):
        low, high = max(part.start, first), max(min(part.stop, first + side), part.start, first)
        here.append(slice(low - part.start, high - part.start))
        there.append(slice(low - first, high - first))
    own = values[tuple(there)]
    sides = [part.stop - part.start for part in box]
    if list(own.shape[1:]) == sides:
        return own
    found = values.new_zeros((len(values), *sides))
    found[tuple(here)] = own
    return found


def on_reference(values: Tensor, space: Sequence[int], origin: Sequence[int] | None) -> Tensor:
    """Maps (B, *part) on the whole reference, (B, *space); see :func:`on_box`."""
    return values if origin is None else on_box(values, [slice(0, side) for side in space], origin)
