"""Graph and attention layers as they are put into a CNN: on few channels, between two projections, beside a skip."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from erfscope.adapters.blocks.maps import MapBlock, activation, whole


class Pipeline(MapBlock):
    """x + norm(conv(layers(norm(conv(x))))), with 1 x 1 convolutions from c to ``inner`` channels and back.

    Args:
        in_channels: c of the input and of the output.
        layer: Makes a layer that keeps ``inner`` channels, given their number.
        inner: Channels between the projections.
        layers: Number of layers.
        act: Name of the activation between layers; None for none.
        residual: Whether the input is added.
        zero_init: Whether the last norm's weight starts at zero, which makes the block with its residual the identity.

    Raises:
        ErfscopeError: a number that is no positive whole one, or an unknown activation.

    Source: Nicolicioiu & Duta, section 4.2: 128 to 32 channels, BatchNorm, two layers, back to 128, BatchNorm,
    residual."""

    def __init__(
        self,
        in_channels: int,
        layer: Callable[[int], nn.Module],
        *,
        inner: int = 32,
        layers: int = 2,
        act: str | None = None,
        residual: bool = True,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        whole("in_channels", in_channels)
        # The norms behind have biases of their own.
        self.conv_in = nn.Conv2d(in_channels, whole("inner", inner), 1, bias=False)
        self.norm_in = nn.BatchNorm2d(inner)
        self.layers = nn.ModuleList(layer(inner) for _ in range(whole("layers", layers)))
        self.act = activation(act)
        self.conv_out = nn.Conv2d(inner, in_channels, 1, bias=False)
        self.norm_out = nn.BatchNorm2d(in_channels)
        self.residual = residual
        if zero_init:
            nn.init.zeros_(self.norm_out.weight)

    def on_map(self, x: Tensor) -> Tensor:
        """The block."""
        y: Tensor = self.norm_in(self.conv_in(x))
        for number, layer in enumerate(self.layers):
            y = layer(y if number == 0 else self.act(y))
        y = self.norm_out(self.conv_out(y))
        return x + y if self.residual else y
