"""Blocks that widen a CNN's view without a graph: GCNet's global context, and large separable kernels."""

from __future__ import annotations

from timm.layers.global_context import GlobalContext
from torch import Tensor, nn

from erfscope.adapters.blocks.maps import MapBlock, PerFrame, whole
from erfscope.core.values.errors import ErfscopeError

__all__ = ["GlobalContext", "LargeKernel", "global_context"]


class LargeKernel(MapBlock):
    """The sum of a k x 1 and a 1 x k convolution one after the other, in both orders; also called GCN, for global
    convolutional network.

    Args:
        in_channels: c of the input.
        out_channels: c of the output; ``in_channels`` if None.
        kernel_size: k, odd, so that the size of the map stays.
        bias: Whether the convolutions have biases.

    Raises:
        ErfscopeError: an even k.

    Source: Peng et al. 2017, Large Kernel Matters, arXiv:1703.02719.
    """

    def __init__(
        self, in_channels: int, out_channels: int | None = None, kernel_size: int = 7, *, bias: bool = True
    ) -> None:
        super().__init__()
        out, k = in_channels if out_channels is None else out_channels, whole("kernel_size", kernel_size)
        if k % 2 == 0:
            raise ErfscopeError(f"kernel_size must be odd, so that the map keeps its size, and is {k}")
        tall, wide = {"kernel_size": (k, 1), "padding": (k // 2, 0)}, {"kernel_size": (1, k), "padding": (0, k // 2)}
        self.conv_l1 = nn.Conv2d(in_channels, out, **tall, bias=bias)  # type: ignore[arg-type]
        self.conv_l2 = nn.Conv2d(out, out, **wide, bias=bias)  # type: ignore[arg-type]
        self.conv_r1 = nn.Conv2d(in_channels, out, **wide, bias=bias)  # type: ignore[arg-type]
        self.conv_r2 = nn.Conv2d(out, out, **tall, bias=bias)  # type: ignore[arg-type]

    def on_map(self, x: Tensor) -> Tensor:
        """The sum of both orders."""
        y: Tensor = self.conv_l2(self.conv_l1(x)) + self.conv_r2(self.conv_r1(x))
        return y


def global_context(
    in_channels: int,
    *,
    use_attn: bool = True,
    fuse_add: bool = True,
    fuse_scale: bool = False,
    rd_ratio: float = 1 / 8,
    rd_channels: int | None = None,
    zero_init: bool = False,
) -> PerFrame:
    """timm's ``GlobalContext`` in the form of the paper: x + MLP(sum_i alpha_i x_i), one context for all cells.

    timm's own default is another, x * sigmoid(MLP(...)), which is not residual: ``fuse_add=False, fuse_scale=True``.

    Args:
        in_channels: c of the input.
        use_attn: Whether alpha is a softmax over the map, or 1 / n.
        fuse_add: Whether the context is added.
        fuse_scale: Whether it gates the channels.
        rd_ratio: Width of the MLP's hidden layer over c.
        rd_channels: That width itself. With 1, its norm makes it constant.
        zero_init: Whether the added branch starts at zero, as in the paper. timm zeroes its last convolution's weight
            and not its bias, so that it is neither the identity nor reads its input; here both are zero, or both are
            drawn.

    Source: Cao et al. 2019, GCNet, arXiv:1904.11492.
    """
    if not (fuse_add or fuse_scale):
        raise ErfscopeError(
            "global context is added (fuse_add), gates the channels (fuse_scale), or both; both are off"
        )
    block = GlobalContext(
        whole("in_channels", in_channels),
        use_attn=use_attn,
        fuse_add=fuse_add,
        fuse_scale=fuse_scale,
        rd_ratio=rd_ratio,
        rd_channels=rd_channels,
    )
    if block.mlp_add is not None:
        last = block.mlp_add.fc2
        last.reset_parameters()
        if zero_init:
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
    return PerFrame(block)
