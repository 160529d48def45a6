"""Where the channels and the spatial axes of a tensor are: channels first, channels last, or a list of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from erfscope.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

Order = Literal["channels_first", "channels_last", "tokens"]
NAMES: dict[str, Order] = {
    "NCHW": "channels_first",
    "NCL": "channels_first",
    "NCTHW": "channels_first",
    "NHWC": "channels_last",
    "NTHWC": "channels_last",
    "NLC": "tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How to read a tensor as a map (B, C, *space)."""

    order: Order
    #: Tokens only: the grid (h, w) that the tokens form after the prefix tokens, row by row.
    grid: tuple[int, ...] = ()
    #: Tokens only: how many class, distillation or register tokens come first. They have no place in a map.
    prefix: int = 0

    def to_map(self, tensor: Tensor) -> Tensor:
        """View ``tensor`` as (B, C, *space). Prefix tokens are dropped. Linear, so it serves gradients as well as features."""
        if self.order == "channels_first":
            return tensor
        if self.order == "channels_last":
            return tensor.movedim(-1, 1)
        tokens = tensor[:, self.prefix :]
        return tokens.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], *self.grid)

    def from_map(self, values: Tensor, like: Tensor) -> Tensor:
        """The tensor that :meth:`to_map` reads as ``values`` (B, C, *space), with the prefix tokens of ``like``."""
        if self.order == "channels_first":
            return values
        if self.order == "channels_last":
            return values.movedim(1, -1)
        import torch

        return torch.cat([like[:, : self.prefix], values.flatten(2).transpose(1, 2)], dim=1)

    def space(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of the map that a tensor of this shape holds."""
        if self.order == "channels_first":
            return tuple(shape[2:])
        return tuple(shape[1:-1]) if self.order == "channels_last" else self.grid


def recognise(
    shape: Sequence[int], input_space: Sequence[int], *, prefix: int = 0, grid: Sequence[int] = (), prefer_last: bool = False
) -> Layout | None:
    """Layout of a tensor of this shape, computed from an input of this spatial size; None if it holds no map.

    A true spatial axis shrinks (or grows) by the same factor in both directions; an axis of channels does not. Where both readings fit,
    ``prefer_last`` decides.

    Args:
        shape: Shape of the tensor, batch first.
        input_space: Spatial size of the input, one to three axes.
        prefix: Number of prefix tokens the model declares.
        grid: Token grid the model declares, () if unknown.
        prefer_last: The model is known to work channels-last inside.

    Returns:
        The layout, or None.
    """
    rank = len(input_space)
    if len(shape) == rank + 2:
        first, last = tuple(shape[2:]), tuple(shape[1:-1])
        if _even(last, input_space) and (prefer_last or not _even(first, input_space)):
            return Layout(order="channels_last")
        return None if _grows_and_shrinks(first, input_space) else Layout(order="channels_first")
    if len(shape) == 3 and rank >= 2:
        return _tokens(shape[1], input_space, prefix, tuple(grid))
    return None


def named(name: str, shape: Sequence[int], input_space: Sequence[int], *, prefix: int = 0, grid: Sequence[int] = ()) -> Layout:
    """Layout that a user named, such as ``"NHWC"``.

    Raises:
        MeasurementError: the tensor cannot be read so.
    """
    order = NAMES[name]
    if order == "tokens":
        found = _tokens(shape[1], input_space, prefix, tuple(grid)) if len(shape) == 3 else None
        if found is None:
            raise MeasurementError(f"layout NLC was asked for, but a tensor of shape {tuple(shape)} forms no token grid")
        return found
    if len(shape) != len(name):
        raise MeasurementError(f"layout {name} was asked for, but the tensor has shape {tuple(shape)}")
    return Layout(order=order)


def _even(space: Sequence[int], input_space: Sequence[int]) -> bool:
    """Whether the last two axes shrink by the same factor, up to the rounding of one cell."""
    if len(space) == 1:
        return space[0] <= input_space[0]
    (h, w), (height, width) = space[-2:], input_space[-2:]
    return abs(h - w * height / width) <= 1 or abs(w - h * width / height) <= 1


def _grows_and_shrinks(space: Sequence[int], input_space: Sequence[int]) -> bool:
    """Whether one axis is longer than the input's and another shorter: windows by tokens by channels, say, and no map."""
    pairs = list(zip(space[-2:], input_space[-2:], strict=True))
    return any(side > whole for side, whole in pairs) and any(side < whole for side, whole in pairs)


def _tokens(length: int, input_space: Sequence[int], prefix: int, grid: tuple[int, ...]) -> Layout | None:
    if grid and math.prod(grid) + prefix == length:
        return Layout(order="tokens", grid=grid, prefix=prefix)
    if grid and math.prod(grid) == length:
        return Layout(order="tokens", grid=grid)
    if len(input_space) == 1:
        return Layout(order="tokens", grid=(length - prefix,), prefix=prefix)
    if len(input_space) != 2:
        return None
    for skipped in dict.fromkeys((prefix, 0, 1)):
        count = length - skipped
        for h in range(1, math.isqrt(max(count, 0) * 64) + 1):
            if count > 0 and count % h == 0 and count > 1 and _same_stride((h, count // h), input_space):
                return Layout(order="tokens", grid=(h, count // h), prefix=skipped)
    return None


def _same_stride(grid: tuple[int, int], input_space: Sequence[int]) -> bool:
    """Whether one stride explains both sides of the grid, both rounded down or both rounded up."""
    (h, w), (height, width) = grid, input_space
    down = max(height / (h + 1), width / (w + 1)) < min(height / h, width / w)
    up = max(height / h, width / w) < min(height / max(h - 1, 1e-9), width / max(w - 1, 1e-9))
    return down or up
