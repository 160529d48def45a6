"""Numbers of a tensor's elements, one array (kinds, *dimensions) with one index along every dimension that they do not
vary along.
"""

from __future__ import annotations

import numpy as np

from erfscope.graph.rules.reading import Dims, FloatArray, IntArray, Shape, groups_of

#: Two numbers of pixels, or of steps, that are closer than this are the same, computed in another order or in float32.
SAME = 1e-5
#: Longest period in which numbers along a dimension go on beyond its ends.
PERIOD = 64


def compress(array: FloatArray) -> FloatArray:
    """The array without dimensions along which nothing varies."""
    for dim in range(1, array.ndim):
        if array.shape[dim] > 1:
            first = array[(slice(None),) * dim + (slice(1),)]
            if ((array == first) | (np.isnan(array) & np.isnan(first))).all():
                array = first
    return array


def reshape_numbers(array: FloatArray, old: Shape, new: Shape) -> FloatArray:
    """The array of a tensor that was reshaped."""
    full, made = [array.shape[0]], [array.shape[0], *new]
    full += [1] * len(old)
    for mine, theirs in groups_of(old, new):
        varies = any(array.shape[1 + i] > 1 for i in mine)
        for i in mine:
            full[1 + i] = old[i] if varies else 1
        for j in theirs:
            made[1 + j] = new[j] if varies else 1
    return compress(np.broadcast_to(array, full).reshape(made))


def arrange(array: FloatArray, step: Dims) -> FloatArray:
    """The array with its dimensions where the output has them; those that go nowhere have one index left."""
    goals = step.goals
    order = [i for i, goal in enumerate(goals) if goal is not None]
    order.sort(key=lambda i: goals[i] or 0)
    gone = [i for i, goal in enumerate(goals) if goal is None]
    moved = array.transpose(0, *(1 + i for i in [*gone, *order])).reshape(
        array.shape[0], *(array.shape[1 + i] for i in order)
    )
    sizes = [1] * len(step.shape)
    for i in order:
        sizes[goals[i] or 0] = array.shape[1 + i]
    return moved.reshape(array.shape[0], *sizes)


def extend(array: FloatArray, dim: int, spots: IntArray, slopes: FloatArray, beyond: float) -> FloatArray:
    """The array at these indices of a dimension, also beyond its ends, where each kind goes on by its slope from
    index to index.

    Numbers that are no straight line, such as those of repeated cells, go on in their period; those without a slope
    are ``beyond``.
    """
    size, trailing = array.shape[dim], (1,) * (array.ndim - dim - 1)
    inside = (spots >= 0) & (spots < size)
    if inside.all():
        return array.take(spots, dim)
    if size > 1 and not slopes.any():
        return np.where(inside.reshape(*inside.shape, *trailing), array.take(np.clip(spots, 0, size - 1), dim), beyond)
    period = _period(array, dim, slopes)
    nearest = np.where(inside, spots, np.where(spots < 0, spots % period, size - period + (spots - size) % period))
    further = (spots - nearest).reshape(*spots.shape, *trailing).astype(array.dtype)
    return array.take(nearest, dim) + further * slopes.reshape(-1, *(1,) * (array.ndim + spots.ndim - 2))


def _period(array: FloatArray, dim: int, slopes: FloatArray) -> int:
    """The smallest number of indices after which the array repeats itself, as many slopes further.

    An uneven staircase, as of adaptive pooling, is taken to repeat itself as a whole, and what is none from its end on.
    """
    size, each = array.shape[dim], slopes.reshape(-1, *(1,) * (array.ndim - 1))
    for period in range(1, min(size // 2, PERIOD) + 1):
        one, other = (array.take(range(*ends), dim) for ends in ((size - period,), (period, size)))
        if np.allclose(one + period * each, other, rtol=0, atol=SAME * float(abs(slopes).max()), equal_nan=True):
            return period
    if np.isnan(array.take([0, -1], dim)).any():  # tokens beside a map stand nowhere
        return 1
    with np.errstate(invalid="ignore"):
        off = np.abs(array.take([-1], dim) - array.take([0], dim) - (size - 1) * each)
    return size if (np.nan_to_num(off, nan=0.0, posinf=0.0) <= np.abs(each)).all() else 1
