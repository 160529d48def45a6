"""What all blocks share: maps (B, C, H, W), video frame by frame, layers that work node by node, and a block as a
function of nodes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from erfscope.core.system.sound_kernels import SoundKernels
from erfscope.core.values.errors import ErfscopeError, unknown

#: Activations between layers, by the name that PyTorch's functions have.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class MapBlock(nn.Module):
    """A block on maps (B, C, H, W). Video (B, C, T, H, W) is taken frame by frame, each as an image of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C_out, H, W), or (B, C, T, H, W) -> (B, C_out, T, H, W).

        Raises:
            ErfscopeError: a tensor of another rank.
        """
        frames = as_pictures(x)
        y = self.on_map(frames)
        return y if x.dim() == 4 else torch.unflatten(y, 0, (x.shape[0], x.shape[2])).transpose(1, 2)

    def on_map(self, x: Tensor) -> Tensor:
        """The block on images, (B, C, H, W) -> (B, C_out, H, W)."""
        raise NotImplementedError


class PerFrame(MapBlock):
    """Any module on maps (B, C, H, W), taking video too."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def on_map(self, x: Tensor) -> Tensor:
        """The module itself."""
        y: Tensor = self.block(x)
        return y


def as_pictures(x: Tensor) -> Tensor:
    """(B, C, H, W) as it is, (B, C, T, H, W) as (B T, C, H, W).

    Raises:
        ErfscopeError: a tensor of another rank.
    """
    if x.dim() not in (4, 5):
        raise ErfscopeError(
            f"a block takes maps (B, C, H, W) or video (B, C, T, H, W), and got a tensor of shape {tuple(x.shape)}"
        )
    return x if x.dim() == 4 else x.transpose(1, 2).flatten(0, 1)


def per_node(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer on the last dimension, such as ``nn.Linear``, to every node of a map: (B, C, H, W) -> (B, C_out, H,
    W)."""
    y: Tensor = layer(x.movedim(1, -1))
    return y.movedim(-1, 1)


def on_nodes(block: nn.Module, height: int, width: int) -> Callable[[Tensor], Tensor]:
    """A block as a function of node features, as the theory writes it.

    Args:
        block: A block on maps; it runs as it is, in training mode if that is on.
        height: Rows of the grid; 1 for a graph that is no grid.
        width: Columns.

    Returns:
        (n, c) -> (n, c_out) or (B, n, c) -> (B, n, c_out), where n = height * width and nodes are counted row by row.
    """

    def function(x: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or x.shape[-2] != height * width:
            raise ErfscopeError(
                f"a grid of {height}x{width} takes node features ({height * width}, c), and got shape {tuple(x.shape)}"
            )
        nodes = x if x.dim() == 3 else x.unsqueeze(0)
        # One sample as a map has strides on which PyTorch's frozen batch norms give wrong gradients.
        with SoundKernels():
            y: Tensor = block(torch.unflatten(nodes.transpose(1, 2), 2, (height, width)))
        out = y.flatten(2).transpose(1, 2)
        return out if x.dim() == 3 else out.squeeze(0)

    return function


def activation(name: str | None) -> nn.Module:
    """The activation of this name; the identity for None.

    Raises:
        ErfscopeError: an unknown name.
    """
    if name is None:
        return nn.Identity()
    return ACTIVATIONS[one_of("activation", name, ACTIVATIONS)]()


def whole(name: str, value: int, *, least: int = 1) -> int:
    """Check that an argument is a whole number, at least ``least``.

    Raises:
        ErfscopeError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ErfscopeError(f"{name} must be a whole number of at least {least}, and is {value!r}")
    return value


def divided(name: str, value: int, heads: int) -> int:
    """Channels of one head.

    Raises:
        ErfscopeError: the heads do not divide the channels.
    """
    if whole(name, value) % whole("heads", heads):
        raise ErfscopeError(f"{heads} heads do not divide {name} = {value}")
    return value // heads


def one_of(kind: str, asked: object, known: dict[str, type[nn.Module]] | tuple[str, ...]) -> str:
    """Check that an argument is one of some names.

    Raises:
        ErfscopeError: it is not.
    """
    if not isinstance(asked, str) or asked not in known:
        raise unknown(kind, str(asked), known)
    return asked
