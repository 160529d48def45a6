"""Checks over other images than the baseline's: false alarms, undecided checks and the changes that are found.

Each net is measured once on many images, which are dealt to a baseline and a check at random, again and again; what is
written, added and decided is what ``erfscope check`` does. A change is known exactly: every image's contributions are
drawn together around the unit, until r50 or r90 of all images is smaller by 5 or 10 %, and neither by more."""

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
from erfscope import CONVENTIONS, Result
from erfscope.apps.gate.gate import BaselineEntry, BaselineMeasure, Verdict, compare_entries, entry_of
from erfscope.apps.gate.sample_sizes import LIMIT, is_enough, more_images, sizes
from erfscope.core.answer.maps.accumulator import GROUPS, MapAccumulator
from erfscope.core.answer.measures.values import with_errors
from erfscope.core.run.engine.running_sums import RunningSums, on_box

SAMPLES, POOL = 20, 1300
GUARDED = ("r50", "r90", "far_mass")
#: Parts by which r50 or r90 is smaller.
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
    #: By what part each measure is really smaller.
    falls: dict[str, float] = field(default_factory=dict)

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

    def contracted(self, part: float) -> tuple[Maps, dict[str, float]]:
        """The contributions, drawn together around the unit so that the one of r50 and r90 that falls more falls by a
        part; and by what parts all measures fall, which cells, unlike lengths, do not share."""
        mean, low, high = self.maps.mean(0, dtype=np.float64), 0.0, 2 * part
        whole = self._sizes(mean)

        def falls(shrunk: float) -> dict[str, float]:
            smaller = self._sizes(self._drawn_together(mean, shrunk))
            return {name: 1 - smaller[name] / whole[name] for name in GUARDED}

        for _ in range(20 if part else 0):
            middle = (low + high) / 2
            found = falls(middle)
            low, high = (middle, high) if max(found["r50"], found["r90"]) < part else (low, middle)
        return np.stack([self._drawn_together(each, low) for each in self.maps]), falls(low)

    def _drawn_together(self, values: NDArray[Any], part: float) -> NDArray[Any]:
        """Values at places that are nearer to the unit by a part."""
        assert self.result.trf is not None
        assert self.result.unit is not None
        center = np.array(self.result.unit.center_px) - [low for low, _ in self.result.trf.clipped_box_px]
        grown = 1 / (1 - part)
        places = {"offset": center * (1 - grown), "order": 1, "mode": "grid-constant"}
        return np.asarray(affine_transform(values, [grown] * values.ndim, **places))

    def _sizes(self, mean: NDArray[Any]) -> dict[str, float]:
        """The measures of a mean of contributions."""
        assert self.result.map is not None
        sums = MapAccumulator(CONVENTIONS[self.result.convention], 1, self.result.map.values.shape, self.result.trf)
        sums.sums.add(0, np.asarray(mean, dtype=np.float64))
        found = with_errors(replace(self.result.map, values=sums.values()), (), GUARDED)
        return {name: float(value) for name, value in found.items()}

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
        verdict = compare_entries(entry, expected, name="x", looks=number)
        images += entry.protocol["samples"]
        if not verdict.is_noisy:
            break
    return verdict, images


def tallies(pool: Pool, runs: int) -> dict[float, Tally]:
    """The verdicts on a net, by its change."""
    found = {change: Tally() for change in CHANGES}
    changed = {}
    for change, tally in found.items():
        changed[change], tally.falls = pool.contracted(change)
    numbers, most = np.random.default_rng(0), LIMIT * SAMPLES
    for _ in range(runs):
        order = numbers.permutation(len(pool.maps))
        expected = baseline_of(pool.entries(pool.maps[order[:most]]))
        for change, tally in found.items():
            maps = changed[change][order[most : 2 * most]]
            verdict, images = checked(pool.entries(maps), expected)
            tally.words[verdict.word] += 1
            tally.first[compare_entries(next(pool.entries(maps)), expected, name="x").word] += 1
            tally.images += images
            tally.baseline += SAMPLES + sum(look.samples for look in expected.more)
    return found
