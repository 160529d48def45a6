"""Maps of a net whose weights are drawn anew, part by part from the output down (Adebayo et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr

import erfscope
from erfscope.adapters import ModuleAdapter
from erfscope.errors import MeasurementError
from erfscope.maps.erf_map import FloatArray
from erfscope.studies.trust.nets import Net

#: Added to a seed, the seed of other weights and other images.
OTHER = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A net whose last parts have other weights."""

    #: The part that got new weights last; "" for none.
    part: str
    #: Spearman's rank correlation, over the pixels of the input, with the map of the net as it was, of other images.
    correlation: float
    #: The share that both maps have in common, each divided by its sum: 1 less the total variation distance.
    overlap: float
    #: The map, (H, W).
    values: FloatArray


def cascade(net: Net, adapter: ModuleAdapter, other: ModuleAdapter, *, samples: int, seed: int) -> Iterator[Stage]:
    """Yield the map of a net before, and after each part that takes the weights of another net.

    Args:
        net: The entry of the net.
        adapter: The net; it ends with the weights of the other one.
        other: The same net with other weights.
        samples: Images of each map.
        seed: Seed of the images and random signs of the first map. The maps that it is compared with have other images,
            so that they have only weights in common.

    Raises:
        MeasurementError: a map could not be measured.
    """
    first = _map(adapter, samples, seed)
    yield _stage("", first, _map(adapter, samples, seed + OTHER))
    own, drawn = adapter.module.state_dict(), other.module.state_dict()
    for part, starts in reversed(net.parts):
        with torch.no_grad():
            for name in own:
                if name.startswith(starts):
                    own[name].copy_(drawn[name])
        yield _stage(part, first, _map(adapter, samples, seed + OTHER))


def _map(adapter: ModuleAdapter, samples: int, seed: int) -> FloatArray:
    result = erfscope.analyze(adapter, samples=samples, seed=seed, measures=["r50"])
    if result.map is None:
        raise MeasurementError(f"{adapter.spec} has no map: {result.error}")
    return result.map.magnitude


def _stage(part: str, first: FloatArray, values: FloatArray) -> Stage:
    shares = first / first.sum(), values / values.sum()
    correlation = float(spearmanr(first.ravel(), values.ravel()).statistic)
    return Stage(part=part, correlation=correlation, overlap=float(np.minimum(*shares).sum()), values=values)
