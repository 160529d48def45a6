"""Which dimensions of a tensor hold the axes of the image.

Each dimension is a product of factors, outermost first, as a reshape would split it. They are either factors of a
spatial axis or anything else (channels, batch, heads), which is always taken in full. Splitting, merging and permuting
dimensions only rearranges factors, so that windows, tokens and channels-last tensors keep their geometry."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

#: The axis of a factor that has no position in the image.
OTHER = -1


class AxisFactor(NamedTuple):
    """One factor: it adds ``step`` times its value, 0 .. size-1, to the coordinate along ``axis``."""

    axis: int
    step: int
    size: int


class TokenSequence(NamedTuple):
    """A dimension of tokens: ``before`` extra tokens such as a class token, the cells of a map, ``after`` more. It
    cannot be split.

    Where the cells come in no order of factors, or not all of them, ``cells`` lists them: for each token the number of
    its cell, row by row over ``inner``, or -1 for a token without a position."""

    before: int
    inner: tuple[AxisFactor, ...]
    after: int
    cells: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of tokens in all."""
        return len(self.cells) if self.cells else self.before + math.prod(f.size for f in self.inner) + self.after

    def is_arranged_as(self, other: Part) -> bool:
        """Whether another part has extra tokens at the same ends and cells in the same order, whatever the size of the
        map."""
        return isinstance(other, TokenSequence) and (self.before, self.after, self.cells) == (
            other.before,
            other.after,
            other.cells,
        )


Part = AxisFactor | TokenSequence
Dim = tuple[Part, ...]


class AffineCenter(NamedTuple):
    """Where the cells of an axis have their centres along an axis of the image: cell i at ``offset + i * step``
    pixels."""

    offset: float
    step: float


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial axis at one level of the network."""

    size: int
    #: Cells of the image per cell here.
    scale: float
    #: Where the cells have their centres: one answer where all paths from the image agree, several where they do not,
    #: none where the operations do not say. Two axes with other centres are the same axis.
    centers: tuple[AffineCenter, ...] = field(default=(), compare=False)
    #: Why the centres are not exact; "" where they are.
    doubt: str = field(default="", compare=False)
    #: How many cells the axis was rolled by, so that as many at its end wrap around.
    rolled: int = field(default=0, compare=False)

    def resample(
        self, size: int, *, scale: float = 1.0, step: float | None = None, shift: float = 0.0, doubt: str = ""
    ) -> Axis:
        """The axis after an operation whose cell j has its centre at cell ``shift + step * j`` of this one.

        Args:
            size: Cells afterwards.
            scale: Cells of this axis per cell afterwards.
            step: The same with a sign, negative where the axis is reversed; ``scale`` if None.
            shift: The centre of cell 0.
            doubt: Why that is not exact.
        """
        signed_scale = scale if step is None else step
        centers = tuple(
            AffineCenter(center.offset + center.step * shift, center.step * signed_scale) for center in self.centers
        )
        pure = signed_scale == 1 and size == self.size
        wrapped = "" if pure or not self.rolled else "the map was rolled, and its cells wrap around"
        return Axis(size, self.scale * scale, centers, self.doubt or doubt or wrapped, self.rolled if pure else 0)

    def roll(self, shift: int) -> Axis:
        """The axis after a cyclic shift; whatever was rolled and rolled back is as it was."""
        centers = tuple(AffineCenter(center.offset - center.step * shift, center.step) for center in self.centers)
        return Axis(self.size, self.scale, centers, self.doubt, (self.rolled + shift) % self.size)

    def without_centers(self, doubt: str) -> Axis:
        """The same axis where the centres of its cells are not known any more."""
        return replace(self, centers=(), doubt=self.doubt or doubt)


class AxisLayout(NamedTuple):
    """The factors of every dimension, and the axes they belong to; an axis that was averaged or mixed away is None."""

    axes: tuple[Axis | None, ...]
    dims: tuple[Dim, ...]

    @property
    def present(self) -> tuple[int, ...]:
        """Numbers of the axes that this tensor still has."""
        return tuple(i for i, axis in enumerate(self.axes) if axis is not None)

    def permute(self, order: Sequence[int]) -> AxisLayout:
        """The layout after ``permute(order)``."""
        return AxisLayout(self.axes, tuple(self.dims[i] for i in order))

    def axis(self, number: int) -> Axis:
        """The axis of this number, which must be present.

        Raises:
            KeyError: the tensor does not have it.
        """
        found = self.axes[number]
        if found is None:
            raise KeyError(number)
        return found

    def size_of(self, number: int) -> int:
        """Cells along an axis that is present."""
        return self.axis(number).size

    def full_axis(self, dim: int) -> int | None:
        """The axis whose coordinate this dimension is, if it is exactly one."""
        parts = self.dims[dim]
        if (
            len(parts) == 1
            and isinstance(parts[0], AxisFactor)
            and parts[0].axis != OTHER
            and parts[0].size == self.size_of(parts[0].axis)
        ):
            return parts[0].axis
        return None

    def with_dims(self, changes: Mapping[int, Dim]) -> AxisLayout:
        """The layout with some dimensions replaced."""
        return AxisLayout(self.axes, tuple(changes.get(i, dim) for i, dim in enumerate(self.dims)))

    def with_axes(self, changes: Mapping[int, Axis | None]) -> AxisLayout:
        """The layout with some axes replaced."""
        return AxisLayout(tuple(changes.get(i, axis) for i, axis in enumerate(self.axes)), self.dims)

    def without_dim(self, dim: int) -> AxisLayout:
        """The layout without one dimension."""
        return AxisLayout(self.axes, (*self.dims[:dim], *self.dims[dim + 1 :]))

    def with_new_dim(self, dim: int, parts: Dim = ()) -> AxisLayout:
        """The layout with one dimension more."""
        return AxisLayout(self.axes, (*self.dims[:dim], parts, *self.dims[dim:]))


def other(size: int) -> Dim:
    """A dimension without positions, such as channels."""
    return (AxisFactor(OTHER, 1, size),) if size != 1 else ()


def layout_without_axes(shape: Sequence[int], rank: int) -> AxisLayout:
    """The layout of a tensor without any spatial axis."""
    return AxisLayout((None,) * rank, tuple(other(n) for n in shape))


def factors_of(dim: Iterable[Part]) -> Iterator[AxisFactor]:
    """All factors of a dimension, those inside token sequences too."""
    for part in dim:
        if isinstance(part, TokenSequence):
            yield from part.inner
        else:
            yield part


def spatial(dim: Iterable[Part]) -> bool:
    """Whether a dimension holds any factor of a spatial axis, or tokens beside a map."""
    return any(isinstance(part, TokenSequence) or part.axis != OTHER for part in dim)


def merge_factors(parts: Iterable[Part], axes: Sequence[Axis | None]) -> list[Part]:
    """The same factors with neighbours joined where they continue each other, and factors of size 1 left out.

    An axis of one cell keeps its factor: its position matters for what lies beyond its borders.
    """
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, AxisFactor):
            axis = axes[part.axis] if part.axis != OTHER else None
            if part.size == 1 and (axis is None or axis.size != 1):
                continue
            last = kept[-1] if kept else None
            if (
                isinstance(last, AxisFactor)
                and last.axis == part.axis
                and (part.axis == OTHER or last.step == part.step * part.size)
            ):
                kept[-1] = AxisFactor(part.axis, 1 if part.axis == OTHER else part.step, last.size * part.size)
                continue
        kept.append(part)
    return kept


def reshape_layout(layout: AxisLayout, old: Sequence[int], new: Sequence[int]) -> AxisLayout | None:
    """The layout after ``view(new)``, factors only; None if the new dimensions cut through factors that cannot be
    split.

    Args:
        layout: Before.
        old: Shape before.
        new: Shape after, without -1.
    """
    head, tail = common_ends(old, new)
    middle = [part for dim in layout.dims[head : len(old) - tail] for part in dim]
    dims = _deal_factors(merge_factors(middle, layout.axes), new[head : len(new) - tail])
    if dims is None:
        return None
    before, after = list(layout.dims[:head]), list(layout.dims[len(old) - tail :])
    made, rest = dims
    if rest:  # axes of one cell, in no dimension of their own any more
        target = made if made else before if before else after
        if not target:
            return None
        target[-1] = (*target[-1], *rest)
    return AxisLayout(layout.axes, tuple(tuple(merge_factors(dim, layout.axes)) for dim in (*before, *made, *after)))


def common_ends(old: Sequence[int], new: Sequence[int]) -> tuple[int, int]:
    """How many dimensions two shapes share at the front, and then at the back."""
    head = tail = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _deal_factors(parts: list[Part], sizes: Sequence[int]) -> tuple[list[Dim], list[Part]] | None:
    """Hand the factors out to dimensions of these sizes; the rest (factors of size 1) comes back."""
    queue = deque(parts)
    dims: list[Dim] = []
    for size in sizes:
        taken: list[Part] = []
        if size == 1 and queue and queue[0].size == 1:
            taken.append(queue.popleft())
        missing = size
        while missing > 1 and queue:
            part = queue.popleft()
            if part.size and missing % part.size == 0:
                taken.append(part)
                missing //= part.size
            elif isinstance(part, AxisFactor) and part.size % missing == 0:
                rest = part.size // missing
                taken.append(AxisFactor(part.axis, 1 if part.axis == OTHER else part.step * rest, missing))
                queue.appendleft(AxisFactor(part.axis, part.step, rest))
                missing = 1
            else:
                return None
        if missing != 1:
            return None
        dims.append(tuple(taken))
    return (dims, list(queue)) if all(part.size == 1 for part in queue) else None


def subdivide(layout: AxisLayout, images: int = 0) -> tuple[AxisLayout, dict[int, int]]:
    """Read a dimension [axis, k others] as the axis with k times as many cells, as pixel shuffling by hand makes them.

    As many others as there are ``images`` in the batch are taken for these, and left alone. Channels that were folded
    into columns look the same: where not all axes are refined alike, or no channels are left beside a lone axis, the
    centres are doubted.

    Returns:
        The layout, and k for every axis that was refined.
    """
    changes: dict[int, Dim] = {}
    ratios: dict[int, int] = {}
    for i, dim in enumerate(layout.dims):
        if (
            len(dim) == 2
            and isinstance(dim[0], AxisFactor)
            and isinstance(dim[1], AxisFactor)
            and dim[0].axis != OTHER
            and dim[1].axis == OTHER
        ):
            (number, _, size), k = dim[0], dim[1].size
            axis = layout.axes[number]
            if axis is not None and axis.size == size > 1 and k != images:
                changes[i] = (AxisFactor(number, 1, size * k),)
                ratios[number] = k
    if not ratios:
        return layout, ratios
    dims = layout.with_dims(changes).dims
    alike = len(set(ratios.values())) == 1 and len(ratios) == len(layout.present)
    channels = math.prod(f.size for dim in dims for f in factors_of(dim) if f.axis == OTHER)
    folded = not alike or (len(layout.axes) == 1 and channels == (images or 1))
    doubt = "channels were folded into its cells, and whether these are finer cells is not known" if folded else ""
    axes = list(layout.axes)
    for number, k in ratios.items():
        axis = layout.axis(number)
        axes[number] = axis.resample(axis.size * k, scale=1 / k, shift=(1 - k) / (2 * k), doubt=doubt)
    return AxisLayout(tuple(axes), dims), ratios


def canonical_layout(axes: Sequence[Axis | None], dims: Sequence[Dim], *, parts: bool = False) -> AxisLayout:
    """The layout after factors have been mixed away: an axis that lost its inner ones becomes coarser, one that lost
    others is gone.

    With ``parts`` one that lost its outer factors lives on as the axis of what is left, a place in each of many
    windows."""
    kept: list[Axis | None] = []
    coarse: dict[int, int] = {}
    for number, axis in enumerate(axes):
        factors = [f for dim in dims for f in factors_of(dim) if f.axis == number]
        lowest = lowest_step(factors)
        count = math.prod(f.size for f in factors)
        if axis is None or lowest is None or (lowest * count != axis.size and not parts):
            kept.append(None)
            continue
        coarse[number] = lowest
        coarser = axis.resample(count, scale=lowest, shift=(lowest - 1) / 2)
        kept.append(
            coarser
            if lowest * count == axis.size
            else coarser.without_centers("a cell is a place in each of many windows")
        )

    def relabel(factor: AxisFactor) -> AxisFactor:
        if factor.axis == OTHER:
            return factor
        if factor.axis not in coarse:
            return AxisFactor(OTHER, 1, factor.size)
        return AxisFactor(factor.axis, factor.step // coarse[factor.axis], factor.size)

    def rewrite(part: Part) -> Part:
        return (
            part._replace(inner=tuple(map(relabel, part.inner))) if isinstance(part, TokenSequence) else relabel(part)
        )

    return AxisLayout(tuple(kept), tuple(tuple(merge_factors(map(rewrite, dim), kept)) for dim in dims))


def lowest_step(factors: Iterable[AxisFactor]) -> int | None:
    """The lowest step of factors that follow each other without a gap; None if there are gaps, or no factors."""
    ordered = sorted(factors, key=lambda f: (f.step, f.size))
    if not ordered:
        return None
    step = ordered[0].step
    for factor in ordered:
        if factor.step != step:
            return None
        step *= factor.size
    return ordered[0].step
