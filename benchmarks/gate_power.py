"""Checks over other images than the baseline's: false alarms, undecided checks and the changes that are found.

Each net is measured once on many images, which are dealt to a baseline and a check at random, again and again; what is
written, added and decided is what ``erfscope check`` does. A change is known exactly: every image's contributions are
drawn together around the unit, so that all lengths are shorter by 5 or 10 %."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform

import erfscope
from erfscope.attribution.convention import CONVENTIONS
from erfscope.engine.running_sums import RunningSums, on_box
from erfscope.gate import BaselineEntry, BaselineMeasure, Verdict, compare, entry_of
from erfscope.gate.looks import LIMIT, is_enough, more_images, sizes
from erfscope.maps.accumulator import GROUPS, MapAccumulator
from erfscope.measures.values import with_errors
from erfscope.results.result import Result

SAMPLES, POOL = 20, 1300
GUARDED = ("r50", "r90", "far_mass")
#: Parts by which every length is shorter.
CHANGES = (0.0, 0.05, 0.1)
Maps = NDArray[np.float32]


@dataclass(kw_only=True)
class Tally:
    """Verdicts of many checks, and the images that they and their baselines were measured over."""

    words: Counter[str] = field(default_factory=Counter)
    #: Of those, what the first images alone decide.
    first: Counter[str] = field(default_factory=Counter)
    images: int = 0
    baseline: int = 0

    def share(self, word: str) -> float:
        """The share of a verdict."""
        return self.words[word] / max(self.words.total(), 1)


@contextlib.contextmanager
def kept_contributions() -> Iterator[list[Maps]]:
    """Keep what the engine adds up, image by image, on the box of the theoretical receptive field."""
    kept: list[Maps] = []
    add = RunningSums.add

    def add_and_keep(self: RunningSums, images: Sequence[int], draws: Sequence[Any], origin: Any = None) -> None:
        own = on_box(sum(draws) / len(draws), self.average().box, origin)
        kept.extend(own.numpy().astype(np.float32))
        add(self, images, draws, origin)

    with mock.patch.object(RunningSums, "add", add_and_keep):
        yield kept


class Pool:
    """A net's contributions to its unit, for each of many images."""

    def __init__(self, model: Any, **asked: Any) -> None:
        asked = {"device": "cpu", "measures": list(GUARDED), **asked}
        with kept_contributions() as kept:
            self.result: Result = erfscope.analyze(model, samples=POOL, **asked)
        self.maps = np.stack(kept)
        # Weights that are not known to be the baseline's have the tolerance of others.
        self.entry = replace(entry_of(self.result, names=GUARDED), weights={})

    def contracted(self, part: float) -> Maps:
        """The contributions, drawn together around the unit so that every length is shorter by a part."""
        assert self.result.trf is not None
        assert self.result.unit is not None
        first = [low for low, _ in self.result.trf.clipped_box_px]
        center = np.array(self.result.unit.center_px) - first
        grown = 1 / (1 - part)
        shift = center * (1 - grown)
        return np.stack([affine_transform(each, [grown] * each.ndim, shift, order=1) for each in self.maps])

    def entries(self, maps: Maps) -> Iterator[BaselineEntry]:
        """What is found over the first images, then over twice as many, and so on up to the limit."""
        result, last = self.result, 0
        assert result.map is not None
        sums = MapAccumulator(CONVENTIONS[result.convention], len(maps), result.map.values.shape, result.trf)
        for n in (SAMPLES, *sizes(SAMPLES)):
            for image in range(last, n):
                sums.sums.add(image % GROUPS, maps[image].astype(np.float64))
            last = n
            found = with_errors(replace(result.map, values=sums.values()), sums.leave_one_out(), GUARDED)
            measures = {
                name: BaselineMeasure(
                    value=float(value), se=value.se, n=n, over="images", leave_one_out=value.leave_one_out
                )
                for name, value in found.items()
            }
            yield replace(self.entry, measures=measures, protocol={**self.entry.protocol, "samples": n})


def baseline_of(looks: Iterator[BaselineEntry]) -> BaselineEntry:
    """What is written into a baseline, with as many images as it takes."""
    first = last = next(looks)
    more = []
    while not is_enough(last, None) and (longer := next(looks, None)) is not None:
        last = longer
        more.append(more_images(last))
    return replace(first, more=tuple(more))


def checked(looks: Iterator[BaselineEntry], expected: BaselineEntry) -> tuple[Verdict, int]:
    """The verdict of a check of other weights, and the images that it takes in all."""
    number, images = 1 + len(expected.more), 0
    for _, entry in zip(range(number), looks, strict=False):
        verdict = compare(entry, expected, name="x", looks=number)
        images += entry.protocol["samples"]
        if not verdict.is_noisy:
            break
    return verdict, images


def tallies(pool: Pool, runs: int) -> dict[float, Tally]:
    """The verdicts on a net, by its change."""
    found = {change: Tally() for change in CHANGES}
    changed = {change: pool.contracted(change) if change else pool.maps for change in CHANGES}
    numbers, most = np.random.default_rng(0), LIMIT * SAMPLES
    for _ in range(runs):
        order = numbers.permutation(len(pool.maps))
        expected = baseline_of(pool.entries(pool.maps[order[:most]]))
        for change, tally in found.items():
            maps = changed[change][order[most : 2 * most]]
            verdict, images = checked(pool.entries(maps), expected)
            tally.words[verdict.word] += 1
            tally.first[compare(next(pool.entries(maps)), expected, name="x").word] += 1
            tally.images += images
            tally.baseline += SAMPLES + sum(look.samples for look in expected.more)
    return found
