"""How often the truth lies within one and two printed errors, by net, measure and number of images.

Run ``python benchmarks/coverage.py``; in a few minutes on two cores it prints the two tables of benchmarks/coverage.md.
Each net's contributions to 1,200 images are computed once, by plain autograd. A run draws some of them, and measures
what erfscope would print; the truth is the same measure over all of them. ``--whole`` repeats two cells with whole
calls of ``erfscope.analyze``, each on images and random signs of its own.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope import CONVENTIONS, ErfMap
from erfscope.core import MeasureValue
from erfscope.core.answer.maps.accumulator import MapAccumulator
from erfscope.core.answer.measures import with_errors
from erfscope.core.images.synthetic import RandomStream, draw_leaves
from erfscope.core.run.engine.looks import look, places_of_looks

MEASURES = ("r50", "r90", "context_r50", "far_mass", "entropy_area")
IMAGES, RUNS, POOL = (5, 10, 20, 50), 1000, 1200
#: Shares of truths within one and within two errors that count as right.
WITHIN = (62, 74), (92, 98)
#: Of runs that end at an error.
TARGETS, UNTIL_RUNS, UNTIL_WITHIN = (0.05, 0.03, 0.01), 500, ((64, 72), (93, 97))
LIMIT = 4000


@dataclass(frozen=True, kw_only=True)
class Net:
    """A net at random weights, and the unit that is measured."""

    build: Callable[[], nn.Module]
    side: int
    center: float
    stride: float


class Gated(nn.Module):
    """A narrow path, and a wide one that some images open far: few of them decide how wide the ERF is."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(3, 8, 7, padding=3)
        self.wide = nn.Sequential(nn.Conv2d(3, 8, 15, padding=7), nn.ReLU(), nn.Conv2d(8, 8, 15, padding=7))

    def forward(self, x: Tensor) -> Tensor:
        brightness = x.detach().mean((1, 2, 3), keepdim=True)
        return self.narrow(x) + torch.exp(5 * brightness - 1) * self.wide(x)


class Tokens(nn.Module):
    """A timm ViT's patch tokens as a map."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        self.vit = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=0)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.vit.forward_features(x)[:, 1:]
        return tokens.transpose(1, 2).unflatten(2, (6, 6))


def convolutions() -> nn.Module:
    """Eight convolutions with batch norm."""
    channels = [3, *[16] * 8]
    layers = ((nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in itertools.pairwise(channels))
    return nn.Sequential(*(module for each in layers for module in each))


def max_pools() -> nn.Module:
    """Three max-pools behind a convolution each."""
    blocks = ((nn.Conv2d(c, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for c in (3, 16, 16))
    return nn.Sequential(*(module for each in blocks for module in each), nn.Conv2d(16, 16, 3, padding=1))


NETS = {
    "CNN": Net(build=convolutions, side=64, center=32.0, stride=1.0),
    "heavy-tailed": Net(build=Gated, side=64, center=32.0, stride=1.0),
    "max-pool": Net(build=max_pools, side=64, center=35.5, stride=8.0),
    "ViT": Net(build=Tokens, side=96, center=55.5, stride=16.0),
}


def built(name: str) -> nn.Module:
    """The net of this name, the same every time."""
    torch.manual_seed(0)
    return NETS[name].build().eval()


def contributions(name: str, count: int = POOL) -> np.ndarray:
    """Squared gradients of the unit's randomly signed channels, summed over the input's, (images, 2 draws, H, W)."""
    net, module, signs = NETS[name], built(name), torch.Generator().manual_seed(0)
    place, found = int(net.center // net.stride), []
    for first in range(0, count, 40):
        drawn = [draw_leaves(RandomStream("leaves", 1, n), (net.side, net.side), 3) for n in range(first, first + 40)]
        x = torch.from_numpy((np.stack(drawn).transpose(0, 3, 1, 2) / 255 - 0.45) / 0.22).float().requires_grad_()
        y = module(x)[:, :, place, place]
        draws = [torch.randint(0, 2, y.shape, generator=signs) * 2.0 - 1 for _ in range(2)]
        each = [torch.autograd.grad((signed * y).sum(), x, retain_graph=True)[0].square().sum(1) for signed in draws]
        found.append(torch.stack(each, 1).double().numpy())
    return np.concatenate(found)


def per_image(pool: np.ndarray, images: int) -> np.ndarray:
    """What each image adds to the sums of a run of so many: the mean of its draws over its total."""
    mean = pool[:, : max(1, math.ceil(8 / images))].mean(1)
    return mean / mean.sum((1, 2), keepdims=True)


def erf_of(name: str, values: np.ndarray) -> ErfMap:
    """The map of a net's unit."""
    net = NETS[name]
    return ErfMap(values=values, center_px=(net.center,) * 2, stride_px=(net.stride,) * 2)


def summed(shares: np.ndarray, chosen: Sequence[int], average: MapAccumulator) -> MapAccumulator:
    """The sums with more images, in their order."""
    for image in chosen:
        average.sums.add(average.group_of(average.n_images), shares[image])
        average.n_images += 1
    return average


def empty(name: str, images: int) -> MapAccumulator:
    """The sums of a run before its first image."""
    return MapAccumulator(CONVENTIONS["jacobian"], images, (NETS[name].side,) * 2, None)


def measured(name: str, shares: np.ndarray, chosen: Sequence[int]) -> dict[str, MeasureValue]:
    """What a run on some images prints."""
    average = summed(shares, chosen, empty(name, len(chosen)))
    return with_errors(erf_of(name, average.values()), average.leave_one_out(), MEASURES)


def truths(name: str, shares: np.ndarray) -> dict[str, float]:
    """The measures over all images."""
    mean = np.sqrt(shares.mean(0))
    return {key: float(each) for key, each in with_errors(erf_of(name, mean / mean.sum()), (), MEASURES).items()}


def shares_within(errors: Sequence[tuple[float, float | None]]) -> tuple[float, float]:
    """How many per cent of differences from the truth are within one and two of their errors."""
    offs = np.array([abs(off) / error for off, error in errors if error])
    return (100 * float(np.mean(offs < 1)), 100 * float(np.mean(offs < 2))) if offs.size else (math.nan, math.nan)


def coverage(name: str) -> list[str]:
    """The rows of one net, and of its paired difference to the CNN."""
    pools = {each: contributions(each) for each in dict.fromkeys((name, "CNN" if name != "CNN" else "max-pool"))}
    other = [*pools][1]
    rows: dict[str, list[str]] = {}
    for images in IMAGES:
        rng, offs = np.random.default_rng([images, [*NETS].index(name)]), dict[str, list[tuple[float, float | None]]]()
        shares = {each: per_image(pool, images) for each, pool in pools.items()}
        true = {each: truths(each, own) for each, own in shares.items()}
        for _ in range(RUNS):
            chosen = rng.integers(0, POOL, images)
            runs = {each: measured(each, own, chosen) for each, own in shares.items()}
            for key, found in runs[name].items():
                offs.setdefault(key, []).append((float(found) - true[name][key], found.se))
            difference, error = runs[name]["r50"].minus(runs[other]["r50"])
            expected = true[name]["r50"] - true[other]["r50"]
            offs.setdefault(f"r50 - r50 of {other}", []).append((float(difference or 0) - expected, error))
        for key, each in offs.items():
            rows.setdefault(key, []).append(_cell(shares_within(each), WITHIN))
    return [f"| {name} | `{key}` | {' | '.join(cells)} |" for key, cells in rows.items()]


def until(name: str) -> list[str]:
    """The rows of one net for runs that end at an error of r50."""
    shares = per_image(contributions(name), LIMIT)
    true, cells = truths(name, shares)["r50"], []
    for target in TARGETS:
        rng, offs, counts = np.random.default_rng([int(100 * target), [*NETS].index(name)]), [], []
        for _ in range(UNTIL_RUNS):
            r50, count = ended(name, shares, target, rng)
            offs.append((float(r50) - true, r50.se))
            counts.append(count)
        cells.append(f"{_cell(shares_within(offs), UNTIL_WITHIN)} ({np.mean(counts):.0f} images)")
    return [f"| {name} | {' | '.join(cells)} |"]


def ended(name: str, shares: np.ndarray, target: float, rng: np.random.Generator) -> tuple[MeasureValue, int]:
    """r50 of a run that ends at this error, and its images."""
    average = empty(name, LIMIT)
    for place in places_of_looks(LIMIT):
        summed(shares, rng.integers(0, POOL, place - average.n_images), average)
        r50 = look(erf_of(name, average.values()), average)
        if r50.se is not None and r50.se <= target * float(r50):
            break
    return r50, average.n_images


def _cell(within: tuple[float, float], allowed: Sequence[tuple[int, int]]) -> str:
    """Both shares; in bold where one is not as it should be; a dash for a size that is 0."""
    if math.isnan(within[0]):
        return "–"
    text = f"{within[0]:.0f} / {within[1]:.0f}"
    is_right = all(low <= round(share) <= high for share, (low, high) in zip(within, allowed, strict=True))
    return text if is_right else f"**{text}**"


def whole(name: str, images: int, runs: int = 250) -> str:
    """The same of whole calls, for r50 and r90: images and random signs are other ones in each."""
    adapter = erfscope.wrap(built(name), input_size=NETS[name].side, mean=(0.45,) * 3, std=(0.22,) * 3)
    asked = {"layer": "output", "measures": "r50,r90"}
    true = erfscope.analyze(adapter, samples=4000, seed=10**6, **asked)
    calls = [erfscope.analyze(adapter, samples=images, seed=seed, **asked) for seed in range(runs)]
    cells = [
        _cell(shares_within([(float(call[key]) - float(true[key]), call[key].se) for call in calls]), WITHIN)
        for key in ("r50", "r90")
    ]
    return f"whole calls: {name}, {images} images: r50 {cells[0]}, r90 {cells[1]}"


def main() -> Iterator[str]:
    """The lines of the tables."""
    warnings.simplefilter("ignore")
    with ProcessPoolExecutor(2, initializer=partial(torch.set_num_threads, 1)) as pool:
        if "--whole" in sys.argv:
            yield from pool.map(whole, ("CNN", "ViT"), (10, 20))
            return
        yield "| net | measure | " + " | ".join(f"{n} images" for n in IMAGES) + " |"
        yield "| --- | --- |" + " ---: |" * len(IMAGES)
        for rows in pool.map(coverage, NETS):
            yield from rows
        yield ""
        yield "| net | " + " | ".join(f"`--until-se {target:.0%}`" for target in TARGETS) + " |"
        yield "| --- |" + " ---: |" * len(TARGETS)
        for rows in pool.map(until, NETS):
            yield from rows


if __name__ == "__main__":
    for line in main():
        print(line, flush=True)
