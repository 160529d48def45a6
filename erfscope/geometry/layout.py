"""How a tensor holds a map: channels first, channels last, as a list of tokens, or with axes split over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from erfscope.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

Order = Literal["channels_first", "channels_last", "tokens", "factors"]
NAMES: dict[str, Order] = {
    "NCHW": "channels_first",
    "NCL": "channels_first",
    "NCTHW": "channels_first",
    "NHWC": "channels_last",
    "NTHWC": "channels_last",
    "NLC": "tokens",
}
#: Roles of factors that do not belong to a spatial axis.
BATCH, CHANNEL = -1, -2


class Factor(NamedTuple):
    """One factor of a dimension that is a product of several, as in ``(batch windows) (rows columns) channels``."""

    #: Number of the spatial axis, :data:`BATCH` or :data:`CHANNEL`.
    role: int
    size: int
    #: Step of the coordinate along its axis.
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How to read a tensor as a map (B, C, *space)."""

    order: Order
    #: Tokens and factors: the grid (h, w) that the positions form; tokens row by row after the prefix tokens.
    grid: tuple[int, ...] = ()
    #: Tokens only: the number of class, distillation or register tokens that come first, and that come last. They are
    #: not in the map.
    prefix: int = 0
    suffix: int = 0
    #: Factors only: those of each dimension, outermost first. The batch's factor is the rest of its dimension.
    factors: tuple[tuple[Factor, ...], ...] = ()
    #: Factors only: for each dimension the entries that are in the map, in the order of the factors; None for all.
    picked: tuple[tuple[int, ...] | None, ...] = ()

    def to_map(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` as (B, C, *space), without tokens beside the map. This is linear, so that it works for
        gradients and features."""
        if self.order == "channels_first":
            return tensor
        if self.order == "channels_last":
            return tensor.movedim(-1, 1)
        if self.order == "factors":
            return self._factors_to_map(tensor)
        tokens = tensor[:, self.prefix : tensor.shape[1] - self.suffix]
        return tokens.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], *self.grid)

    def from_map(self, values: Tensor, like: Tensor) -> Tensor:
        """Return the tensor that :meth:`to_map` reads as ``values`` (B, C, *space), with the tokens of ``like`` beside
        the map."""
        if self.order == "channels_first":
            return values
        if self.order == "channels_last":
            return values.movedim(1, -1)
        if self.order == "factors":
            return self._factors_from_map(values, like)
        import torch

        tokens = values.flatten(2).transpose(1, 2)
        return torch.cat([like[:, : self.prefix], tokens, like[:, like.shape[1] - self.suffix :]], dim=1)

    def space(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of the map in a tensor of this shape."""
        if self.order == "channels_first":
            return tuple(shape[2:])
        return tuple(shape[1:-1]) if self.order == "channels_last" else self.grid

    def channels(self, shape: Sequence[int]) -> int:
        """Return the number of channels of the map in a tensor of this shape."""
        if self.order == "factors":
            return math.prod(factor.size for dim in self.factors for factor in dim if factor.role == CHANNEL)
        return shape[1] if self.order == "channels_first" else shape[-1]

    def map_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return (B, C, *space) of the map in a tensor of this shape."""
        if self.order != "factors":
            return (shape[0], self.channels(shape), *self.space(shape))
        batch = (shape[i] // _rest(dim) for i, dim in enumerate(self.factors) if _has_batch(dim))
        return (math.prod(batch), self.channels(shape), *self.grid)

    def _factors_to_map(self, tensor: Tensor) -> Tensor:
        if tensor.dim() != len(self.factors):
            raise has_lost_an_axis(len(self.factors), tensor.shape)
        inner = tensor
        for dim, entries in enumerate(self.picked):
            if entries is not None:
                inner = inner[self._index(dim, entries)]
        sizes = self._sizes(inner.shape)
        ordered = inner.reshape([size for dim in sizes for size in dim]).permute(self._order())
        return ordered.reshape(-1, self.channels(tensor.shape), *self.grid)

    def _factors_from_map(self, values: Tensor, like: Tensor) -> Tensor:
        picked = [(dim, entries) for dim, entries in enumerate(self.picked) if entries is not None]
        inner = [n if entries is None else len(entries) for n, entries in zip(like.shape, self.picked, strict=True)]
        flat, order = [size for dim in self._sizes(inner) for size in dim], self._order()
        part = (
            values.reshape([flat[i] for i in order])
            .permute(sorted(range(len(order)), key=order.__getitem__))
            .reshape(inner)
        )
        if not picked:
            return part
        if len(picked) > 1:
            raise MeasurementError("tokens beside a map along two dimensions cannot be put back into their tensor")
        whole = like.clone()
        whole[self._index(*picked[0])] = part
        return whole

    def _index(self, dim: int, entries: tuple[int, ...]) -> Any:
        """Return the index of entries of a dimension: a slice, which copies nothing, if they follow each other."""
        if entries == tuple(range(entries[0], entries[0] + len(entries))):
            return (slice(None),) * dim + (slice(entries[0], entries[0] + len(entries)),)
        return (slice(None),) * dim + (list(entries),)

    def _sizes(self, shape: Sequence[int]) -> list[list[int]]:
        """Return the sizes of the factors of a tensor of this shape, without entries beside the map."""
        return [
            [n // _rest(dim) if factor.role == BATCH else factor.size for factor in dim]
            for n, dim in zip(shape, self.factors, strict=True)
        ]

    def _order(self) -> list[int]:
        """Return the order of the factors in the map: batch, channels, then each axis with its outermost factor
        first."""
        flat = list(enumerate(factor for dim in self.factors for factor in dim))
        axes = sorted((role, -factor.step, i) for i, factor in flat if (role := factor.role) >= 0)
        return [
            *(i for i, d in flat if d.role == BATCH),
            *(i for i, d in flat if d.role == CHANNEL),
            *(i for _, _, i in axes),
        ]


def has_lost_an_axis(count: int, shape: Sequence[int]) -> MeasurementError:
    """Return the error for a tensor whose number of axes depends on the number of images."""
    text = f"a tensor of {count} axes in the recorded pass has shape {tuple(shape)} now"
    hint = "a model that squeezes loses the axis of an image alone; let erfscope.wrap(model, forward=...) put it back"
    return MeasurementError(f"{text}: {hint}")


def _has_batch(dim: Sequence[Factor]) -> bool:
    return any(factor.role == BATCH for factor in dim)


def _rest(dim: Sequence[Factor]) -> int:
    """Return the product of the factors of a dimension that are not the batch's."""
    return math.prod(factor.size for factor in dim if factor.role != BATCH)


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
        return Layout(order="channels_last")
    return None if _grows_and_shrinks(first, input_space) else Layout(order="channels_first")


def named_layout(name: str, shape: Sequence[int], input_space: Sequence[int], *, prefix: int | None = None) -> Layout:
    """Return the layout that a user named, such as ``"NHWC"``. Tokens come after ``prefix`` others; if that is None,
    after none or one.

    Raises:
        MeasurementError: the tensor cannot be read so.
    """
    order = NAMES[name]
    if order == "tokens":
        found = _tokens(shape[1], input_space, prefix) if len(shape) == 3 else None
        if found is None:
            raise MeasurementError(
                f"layout NLC was asked for, but a tensor of shape {tuple(shape)} forms no token grid"
            )
        return found
    if len(shape) != len(name):
        raise MeasurementError(f"layout {name} was asked for, but the tensor has shape {tuple(shape)}")
    return Layout(order=order)


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
        return Layout(order="tokens", grid=(length - first,), prefix=first)
    if len(input_space) != 2:
        return None
    for skipped in (0, 1) if prefix is None else (prefix,):
        count = length - skipped
        for h in range(1, math.isqrt(max(count, 0) * 64) + 1):
            if count > 0 and count % h == 0 and count > 1 and _same_stride((h, count // h), input_space):
                return Layout(order="tokens", grid=(h, count // h), prefix=skipped)
    return None


def _same_stride(grid: tuple[int, int], input_space: Sequence[int]) -> bool:
    """Return whether one stride explains both sides of the grid, both rounded down or both rounded up."""
    (h, w), (height, width) = grid, input_space
    down = max(height / (h + 1), width / (w + 1)) < min(height / h, width / w)
    up = max(height / h, width / w) < min(height / max(h - 1, 1e-9), width / max(w - 1, 1e-9))
    return down or up
