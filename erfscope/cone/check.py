"""Whether a cone computes the same as the whole pass, by running both in float64."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from erfscope.adapter import Adapter
from erfscope.attribution.folding import Folding
from erfscope.attribution.gradient import Asked, cone_draws
from erfscope.box import box_at, inside
from erfscope.cone.cone import Cone
from erfscope.convention import CONVENTIONS

#: Largest relative L1 difference between two computations of one map that are both right, in float64.
TOLERANCE = 1e-10


def difference(adapter: Adapter, cone: Cone, x: Tensor) -> float:
    """Relative L1 difference of the amplitude map of a cone from that of the whole pass, in float64.

    Args:
        adapter: The model; a copy is run.
        cone: What is checked.
        x: Inputs (B, C_in, *space), whole.
    """
    double = _in_double(adapter)
    space = tuple(x.shape[2:])
    whole = replace(
        cone, unit=cone.whole_unit, image=tuple((0, side) for side in space), cuts=(), patches=(), origin=(0,) * len(cone.origin)
    )
    # Random signs: a plain sum of the channels has no gradient at all after a LayerNorm, and noise is no comparison.
    asked = Asked(convention=CONVENTIONS["energy"], images=range(len(x)))
    folding = Folding(double.module, cone.folds)
    runs = ((whole, None), (cone, folding))
    maps = [next(cone_draws(double, x.double(), [each], asked, folding=fold)).maps.sqrt() for each, fold in runs]
    cropped = torch.zeros_like(maps[0])
    cropped[inside(box_at(cone.origin, maps[1].shape[1:]))] = maps[1]
    total = float(maps[0].abs().sum())
    return float((maps[0] - cropped).abs().sum()) / total if total > 0 else math.inf


def _in_double(adapter: Adapter) -> Adapter:
    double = copy.copy(adapter)
    double.module = copy.deepcopy(adapter.module).double()
    return double
