"""Operations that change the size of a map: padding, pooling to a given size, interpolation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from erfscope.core.graph.graph import evaluate, shape_of
from erfscope.core.graph.rules.moves import along
from erfscope.core.graph.rules.parts import PartStep, PartValues, run_by_moves, runs
from erfscope.core.graph.rules.reading import (
    ABSENT,
    OPERATIONS,
    Call,
    Edge,
    FloatArray,
    IntArray,
    Shape,
    Taps,
    Whole,
    rule,
    taps,
)


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_pooling(call: Call) -> list[Edge] | None:
    """Pooling to a given size; to one cell it is global."""
    x, count = call.tensor(), len(call.args["output_size"])
    if call.output:
        return None
    reads = {}
    for dim in range(len(call.shape) - count, len(call.shape)):
        size, out = shape_of(x)[dim], call.shape[dim]
        reads[dim] = dim if size == out else Whole() if out == 1 else _adaptive_taps(dim, size, out)
    return along(call, x, reads, mixing=f"global {'max' if 'max' in call.name else 'average'} pooling")


def _adaptive_taps(dim: int, size: int, out: int) -> Taps:
    """Output i reads floor(i S / out) to ceil((i + 1) S / out), the last excluded; windows of unequal length have
    no even centres.
    """
    i = np.arange(out)
    first, stop = i * size // out, -(-(i + 1) * size // out)
    grid = first[:, None] + np.arange(int((stop - first).max()))
    reason = f"adaptive pooling of {size} to {out} cells has windows of unequal length" if size % out else ""
    center = (i + 0.5) * size / out - 0.5
    return taps(
        dim,
        size,
        np.where(grid < stop[:, None], grid, ABSENT),
        center=center,
        scale=size / out,
        inexact_reason=reason,
    )


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@rule("replication_pad1d", "replication_pad2d", "replication_pad3d", "_pad_circular", "_pad_enum")
def padding(call: Call) -> list[Edge] | None:
    """Padding: with constants the map ends, else it goes on; without borders all are plain shifts. Negative amounts
    crop.
    """
    x, amounts = call.tensor(), call.args["pad" if "pad" in call.args else "padding"]
    mode = call.args.get("mode") or call.name.partition("_")[0]
    reads = {}
    for i in range(len(amounts) // 2):
        dim = len(call.shape) - 1 - i
        size, spots = shape_of(x)[dim], np.arange(call.shape[dim]) - amounts[2 * i]
        if amounts[2 * i] or amounts[2 * i + 1]:
            reads[dim] = taps(
                dim, size, spots[:, None], inside=_around_border(str(mode), spots, size)[:, None], scale=1
            )
    return along(call, x, reads)


def _around_border(mode: str, spots: IntArray, size: int) -> IntArray:
    """The cells that stand at places beyond the borders; -1 for none."""
    if mode.startswith("refle"):
        spots = (size - 1) - np.abs((size - 1) - np.abs(spots))
    elif mode.startswith("repli"):
        spots = np.clip(spots, 0, size - 1)
    elif mode == "circular":
        spots = spots % size
    inside: IntArray = np.where((spots >= 0) & (spots < size), spots, -1)
    return inside


@rule(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
)
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bicubic2d")
@rule("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
def interpolation(call: Call) -> list[Edge] | None:
    """Interpolation of every kind."""
    x, align = call.tensor(), bool(call.args.get("align_corners"))
    count = len(call.shape) - 2
    named = [
        call.args.get(key)
        for key in {1: ("scales",), 2: ("scales_h", "scales_w")}.get(count, ("scales_d", "scales_h", "scales_w"))
    ]
    factors = call.args.get("scale_factors") or named
    reads = {}
    for dim, factor in enumerate(factors, start=2):
        size, out = shape_of(x)[dim], call.shape[dim]
        scale = (size - 1) / (out - 1) if align and out > 1 else 0.0 if align else 1 / factor if factor else size / out
        reads[dim] = _resized_taps(dim, size, out, scale, call.name, align=align)
    return along(call, x, reads)


def _resized_taps(dim: int, size: int, out: int, scale: float, name: str, *, align: bool) -> Taps:
    """One dimension interpolated.

    Source points are computed in float32 and in float64 and both answers are kept: they differ only where a point
    falls on the edge between two cells. What lies outside is clamped.
    """
    shift, reason = (0.0, "") if align else _first_source(out, scale, name)
    found = [_sources(np.arange(out).astype(kind), scale, name, align) for kind in (np.float32, np.float64)]
    spots = np.concatenate(found, 1)
    clamped = np.where(spots == ABSENT, -1, np.clip(spots, 0, size - 1))
    if name.endswith("_aa"):
        clamped = np.where((spots < 0) | (spots >= size), -1, spots)
    center = np.full(out, shift) + scale * np.arange(out)
    return taps(dim, size, spots, inside=clamped, center=center, scale=scale or float(size), inexact_reason=reason)


def _first_source(out: int, scale: float, name: str) -> tuple[float, str]:
    """Where cell 0 of an interpolated axis has its centre, and why that is not exact.

    Half a cell in, and for nearest neighbours what rounding down takes off on the average, which is the same for all
    cells where cells are only repeated or left out.
    """
    if "nearest" not in name:
        return (scale - 1) / 2, ""
    p, q = Fraction(scale).limit_denominator(max(out, 1)).as_integer_ratio()
    reason = f"nearest neighbours repeat cells unevenly, {p} for {q}" if p > 1 and q > 1 else ""
    if "exact" in name:
        return scale / 2 - ((q - 1) / (2 * q) if p % 2 == 0 else 0.5), reason
    return -(q - 1) / (2 * q), reason


def _sources(index: FloatArray, scale: float, name: str, align: bool) -> IntArray:
    """Cells with a weight, (outputs, taps), as PyTorch computes them (ATen/native/UpSample.h)."""
    number = index.dtype.type
    step, half = number(scale), number(0.5)
    if "nearest" in name:
        return np.floor(index * step if "exact" not in name else (index + half) * step).astype(np.intp)[:, None]
    if name.endswith("_aa"):
        width = {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 4}.get(name, 6)
        widening, center = number(max(scale, 1.0)), step * (index + half)
        first = np.floor(center - widening * number(width / 2) + half).astype(np.intp)
        grid = first[:, None] + np.arange(math.ceil(width * widening) + 2)
        distance = np.abs(grid.astype(index.dtype) - center[:, None] + half) / widening
        return np.where(distance < width / 2, grid, ABSENT)
    point = index * step if align else step * (index + half) - half
    low = np.floor(point).astype(np.intp)[:, None]
    offsets = np.arange(-1, 3) if "cubic" in name else np.arange(2)
    return np.where((point[:, None] != low) | (offsets == 0), low + offsets, ABSENT)


@runs("pad", "constant_pad_nd")
def run_padding(step: PartStep, values: PartValues) -> Tensor:
    """Padding by moving, with a value where nothing is moved from."""
    return run_by_moves(step, values, float(step.call.args.get("value") or 0.0))


@runs(*(name for name, known in OPERATIONS.items() if known.reads is interpolation))
@runs("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
@runs("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def run_resampling(step: PartStep, values: PartValues) -> Tensor:
    """Each dimension by the matrix of its weights, which the operation gives for unit vectors."""
    call = step.call
    x = call.tensor()
    out, shape = values.of(x), shape_of(x)
    lead = len(shape) - int(next(letter for letter in call.name if letter.isdigit()))
    for dim in range(lead, len(shape)):
        weights = _weights(call, shape, lead, dim, out)
        index = [torch.as_tensor(each, device=out.device) for each in (step.needed[x][dim], step.part[dim])]
        out = torch.movedim(torch.movedim(out, dim, -1) @ weights[index[0]][:, index[1]], -1, dim)
    return out


def _weights(call: Call, shape: Shape, lead: int, dim: int, like: Tensor) -> Tensor:
    """The weight of each input cell in each output cell along one dimension."""
    side, x = shape[dim], call.tensor()
    # Along the others as many cells as one of the output is made of, for an operation that takes a scale.
    sides = [side if d == dim else -(-shape[d] // call.shape[d]) for d in range(lead, len(shape))]
    line = [side if d == dim else 1 for d in range(lead, len(shape))]
    unit = torch.eye(side, dtype=like.dtype, device=like.device).reshape(side, 1, *line).expand(side, 1, *sides)
    found: Tensor = evaluate(call.node, lambda node: unit if node is x else node)
    for other in reversed([d for d in range(lead, len(shape)) if d != dim]):
        found = found.select(2 + other - lead, 0)
    return found[:, 0]
