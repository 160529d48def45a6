"""How a tensor holds a map: which of its dimensions are the space, the images and the channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from erfscope.core.values.errors import MeasurementError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

#: What a user can name, with the dimensions of the space; tokens form a grid.
NAMES = {"NCHW": (), "NCL": (), "NCTHW": (), "NHWC": (1, 2), "NTHWC": (1, 2, 3), "NLC": (1,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How to read a tensor as a map (B, C, *space): which of its dimensions are the space and which the images. All
    others are channels."""

    #: Dimensions of the space, in the order of its axes; that of tokens is one. () for all behind the first two, of a
    #: tensor of any rank, and never all of these by name.
    dims: tuple[int, ...] = ()
    #: That of the images; None of a tensor of one image that has none.
    batch_dim: int | None = 0
    #: Of tokens: the grid (h, w) that they form, row by row after the prefix tokens; () where each axis is a dimension.
    grid: tuple[int, ...] = ()
    #: The axes of the grid in the order in which tokens go along them, the slowest first, as (1, 2, 0) of those that
    #: have all frames of a place side by side; () in their own order.
    order: tuple[int, ...] = ()
    #: The number of class, distillation or register tokens that come first, and that come last. They are not in the
    #: map.
    prefix: int = 0
    suffix: int = 0
    #: What the indices of the space count where these have no place, see :mod:`erfscope.core.values.unit_kind`; "" of a
    #: map.
    kind: str = ""

    def space_dims(self, rank: int) -> tuple[int, ...]:
        """Return the dimensions of a tensor of so many that are the space."""
        return self.dims or tuple(range(2, rank))

    def channel_dims(self, rank: int) -> tuple[int, ...]:
        """Return those that are channels."""
        return tuple(dim for dim in range(rank) if dim not in (self.batch_dim, *self.space_dims(rank)))

    def to_map(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` as (B, C, *space), without tokens beside the map. This is linear, so that it works for
        gradients and features."""
        values = self._channels_first(tensor)
        if not self.grid:
            return values
        cells = values[:, :, self.prefix : values.shape[2] - self.suffix]
        if not self.order:
            return cells.reshape(*cells.shape[:2], *self.grid)
        cells = cells.reshape(*cells.shape[:2], *(self.grid[axis] for axis in self.order))
        return cells.permute(0, 1, *(2 + self.order.index(axis) for axis in range(len(self.grid))))

    def _channels_first(self, tensor: Tensor) -> Tensor:
        if self.batch_dim is None:
            return self._in_batch()._channels_first(tensor[None])
        rank = tensor.dim()
        last = max(self.batch_dim, *self.dims, 0 if self.dims else 1 if self.kind else 2)
        if rank <= last:
            raise has_lost_an_axis(last + 1, tensor.shape)
        channels = self.channel_dims(rank)
        moved = tensor.permute(self.batch_dim, *channels, *self.space_dims(rank))
        return moved.flatten(1, len(channels)) if channels else moved.unsqueeze(1)

    def from_map(self, values: Tensor, like: Tensor) -> Tensor:
        """Return the tensor that :meth:`to_map` reads as ``values`` (B, C, *space), with the tokens of ``like`` beside
        the map."""
        if self.batch_dim is None:
            return self._in_batch().from_map(values, like[None])[0]
        rank = like.dim()
        channels = self.channel_dims(rank)
        if self.grid:
            import torch

            beside = self._channels_first(like)
            last = beside[:, :, beside.shape[2] - self.suffix :]
            values = values.permute(0, 1, *(2 + axis for axis in self.order)) if self.order else values
            values = torch.cat([beside[:, :, : self.prefix], values.flatten(2), last], 2)
        sides = [like.shape[dim] for dim in channels]
        values = values.reshape(len(values), *sides, *values.shape[2:])
        order = (self.batch_dim, *channels, *self.space_dims(rank))
        return values.permute(*(order.index(dim) for dim in range(rank)))

    def _in_batch(self) -> Layout:
        """How the tensor is read once it has a first dimension for its one image."""
        return replace(self, batch_dim=0, dims=tuple(dim + 1 for dim in self.dims))

    def space(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of the map in a tensor of this shape."""
        return self.grid or tuple(shape[dim] for dim in self.space_dims(len(shape)))

    def map_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return (B, C, *space) of the map in a tensor of this shape."""
        channels = math.prod(shape[dim] for dim in self.channel_dims(len(shape)))
        images = 1 if self.batch_dim is None else shape[self.batch_dim]
        return (images, channels, *self.space(shape))

    def token_numbers(self) -> NDArray[np.intp]:
        """Return the number of each cell's token among those of the grid, (*grid)."""
        import numpy as np

        order = self.order or tuple(range(len(self.grid)))
        numbers = np.arange(math.prod(self.grid)).reshape([self.grid[axis] for axis in order])
        return numbers.transpose(np.argsort(order))

    def unit_box(self, shape: Sequence[int], unit: Sequence[int]) -> tuple[NDArray[np.intp], ...]:
        """Return the indices along each dimension of a tensor of this shape that one unit of its map is."""
        import numpy as np

        box = [np.arange(side) for side in shape]
        spots = [self.prefix + int(self.token_numbers()[tuple(unit)])] if self.grid else unit
        for dim, spot in zip(self.space_dims(len(shape)), spots, strict=True):
            box[dim] = np.array([spot])
        return tuple(box)


def has_lost_an_axis(count: int, shape: Sequence[int]) -> MeasurementError:
    """Return the error for a tensor whose number of axes depends on the number of images."""
    text = f"a tensor of {count} axes in the recorded pass has shape {tuple(shape)} now"
    hint = "a model that squeezes loses the axis of an image alone; let erfscope.wrap(model, forward=...) put it back"
    return MeasurementError(f"{text}: {hint}")


def guess_layout(shape: Sequence[int], input_space: Sequence[int]) -> Layout | None:
    """Guess the layout of a tensor of this shape, computed from an input of this spatial size; None if it holds no map.

    A true spatial axis shrinks (or grows) by the same factor in both directions; an axis of channels does not. The
    number of tokens does not tell their positions.

    Args:
        shape: Shape of the tensor, batch first.
        input_space: Spatial size of the input, one to three axes.
    """
    rank = len(input_space)
    if len(shape) != rank + 2:
        return None
    first, last = tuple(shape[2:]), tuple(shape[1:-1])
    if _even(last, input_space) and not _even(first, input_space):
        return Layout(dims=tuple(range(1, len(shape) - 1)))
    return None if _grows_and_shrinks(first, input_space) else Layout()


def named_layout(name: str, shape: Sequence[int], input_space: Sequence[int], *, prefix: int | None = None) -> Layout:
    """Return the layout that a user named, such as ``"NHWC"``. Tokens come after ``prefix`` others; if that is None,
    after none or one.

    Raises:
        MeasurementError: the tensor cannot be read so.
    """
    if name == "NLC":
        layout = _tokens(shape[1], input_space, prefix) if len(shape) == 3 else None
        if layout is None:
            raise MeasurementError(
                f"layout NLC was asked for, but a tensor of shape {tuple(shape)} forms no token grid"
            )
        return layout
    if len(shape) != len(name):
        raise MeasurementError(f"layout {name} was asked for, but the tensor has shape {tuple(shape)}")
    return Layout(dims=NAMES[name])


def _even(space: Sequence[int], input_space: Sequence[int]) -> bool:
    """Return whether the last two axes shrink by the same factor, up to the rounding of one cell."""
    if len(space) == 1:
        return space[0] <= input_space[0]
    (h, w), (height, width) = space[-2:], input_space[-2:]
    return abs(h - w * height / width) <= 1 or abs(w - h * width / height) <= 1


def _grows_and_shrinks(space: Sequence[int], input_space: Sequence[int]) -> bool:
    """Return whether one axis is longer than the input's and another shorter, as in windows by tokens by channels,
    which is no map."""
    pairs = list(zip(space[-2:], input_space[-2:], strict=True))
    return any(side > whole for side, whole in pairs) and any(side < whole for side, whole in pairs)


def _tokens(length: int, input_space: Sequence[int], prefix: int | None) -> Layout | None:
    first = prefix or 0
    if len(input_space) == 1:
        return Layout(dims=(1,), grid=(length - first,), prefix=first)
    if len(input_space) != 2:
        return None
    for skipped in (0, 1) if prefix is None else (prefix,):
        count = length - skipped
        for h in range(1, math.isqrt(max(count, 0) * 64) + 1):
            if count > 0 and count % h == 0 and count > 1 and _same_stride((h, count // h), input_space):
                return Layout(dims=(1,), grid=(h, count // h), prefix=skipped)
    return None


def _same_stride(grid: tuple[int, int], input_space: Sequence[int]) -> bool:
    """Return whether one stride explains both sides of the grid, both rounded down or both rounded up."""
    (h, w), (height, width) = grid, input_space
    down = max(height / (h + 1), width / (w + 1)) < min(height / h, width / w)
    up = max(height / h, width / w) < min(height / max(h - 1, 1e-9), width / max(w - 1, 1e-9))
    return down or up
