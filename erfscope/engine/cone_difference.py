"""How far the map of a cone is from that of the whole pass, by running both in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from erfscope.adapter import Adapter
from erfscope.attribution.bn_folding import Folding
from erfscope.attribution.convention import CONVENTIONS
from erfscope.attribution.gradient import GradientRequest, cone_draws
from erfscope.cone.cone import Cone
from erfscope.engine.double import copy_in_double, run_in_double
from erfscope.geometry.box import box_at, inside

#: Largest relative L1 difference between two computations of one map that are both right, in float64.
TOLERANCE = 1e-10


def difference(adapter: Adapter, cone: Cone, x: Tensor) -> float:
    """Relative L1 difference of the amplitude map of a cone from that of the whole pass, in float64.

    Args:
        adapter: The model; a copy is run.
        cone: What is checked.
        x: Inputs (B, C_in, *space), whole.

    Raises:
        NoDoublePrecision: the model cannot be run in float64, such as one that makes float32 tensors of its own.
    """
    return next(differences(adapter, [cone], [x]))


def differences(adapter: Adapter, cones: Sequence[Cone], inputs: Iterable[Tensor]) -> Iterator[float]:
    """The largest :func:`difference` of several cones, for each of the inputs, which are read one by one.

    Raises:
        NoDoublePrecision: as for :func:`difference`.
    """
    double = copy_in_double(adapter)
    for x in inputs:
        yield max(run_in_double(partial(_difference, double, cone, x.double())) for cone in cones)


def _difference(double: Adapter, cone: Cone, x: Tensor) -> float:
    box = tuple((0, side) for side in x.shape[2:])
    whole = replace(cone, unit=cone.whole_unit, image=box, input_crops=(), cellwise_crops=(), origin=(0,) * len(cone.origin))
    # Random signs: a plain sum of the channels has no gradient at all after a LayerNorm, and noise is no comparison.
    asked = GradientRequest(convention=CONVENTIONS["energy"], images=range(len(x)))
    folding = Folding(double.module, cone.folds)
    maps = [next(cone_draws(double, x, [each], asked, folding=fold)).maps.sqrt() for each, fold in ((whole, None), (cone, folding))]
    cropped = torch.zeros_like(maps[0])
    cropped[inside(box_at(cone.origin, maps[1].shape[1:]))] = maps[1]
    off, total = float((maps[0] - cropped).abs().sum()), float(maps[0].abs().sum())
    # Where no gradient arrives, as behind gates that are all closed, both are nothing.
    return off / total if total > 0 else 0.0 if off == 0 else math.inf
