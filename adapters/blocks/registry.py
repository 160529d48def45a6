"""Blocks by name, as ``--insert NAME@LAYER:option=value`` asks for them.

To add one: its module in this folder, a row here, its name in ``Building.insert`` of ``core/request/option.py`` and a
row in ``docs/blocks.md``; ``tests/adapters/test_blocks_registry.py`` tries every row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapters.blocks.attention import NonLocal, SelfAttention
from erfscope.adapters.blocks.graph_nets import GAT, GCN, GIN, ChebNet, ChebyGIN, GATv2
from erfscope.adapters.blocks.graphs import as_graph
from erfscope.adapters.blocks.maps import MapBlock, activation, divided, whole
from erfscope.adapters.blocks.pooling import ThresholdPooling, TopKPooling
from erfscope.adapters.blocks.wide import LargeKernel, global_context
from erfscope.adapters.sources import factory
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.values.errors import unknown


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


_GRAPH = ("graph", "k", "links", "self_loops")
_PIPELINE = ("inner", "layers", "act", "residual", "zero_init")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEntry:
    """A block that can be asked for by name; called with ``in_channels`` and options it makes one, which keeps the
    shape of a map."""

    #: One line for a list.
    description: str
    build: Callable[..., nn.Module]
    #: Names of the options.
    options: tuple[str, ...]

    def __call__(self, in_channels: int, /, **options: object) -> nn.Module:
        """Make the block."""
        return self.build(in_channels, **options)


def make(name: str, in_channels: int, /, **options: object) -> nn.Module:
    """A block for a map of so many channels.

    Args:
        name: One of :data:`BLOCKS`, or ``package.module:Class`` or ``path/file.py:Class``, which is called with
            ``in_channels`` first.
        in_channels: c.
        **options: Of the block; see :attr:`BlockEntry.options`.

    Returns:
        The module, on (B, C, H, W); those of :data:`BLOCKS` keep the shape and take video (B, C, T, H, W) too.

    Raises:
        ErfscopeError: an unknown name or option, or values that the block does not take.
    """
    if ":" in name:
        # ``insert`` has seeded the generators.
        return factory.run(name, in_channels, seed=torch.initial_seed(), kwargs=options)
    if name not in BLOCKS:
        raise unknown("block", name, BLOCKS, limit=20)
    entry = BLOCKS[name]
    for option in options:
        if option not in entry.options:
            raise unknown("option", option, entry.options, where=f"block {name}", limit=30)
    with errors_as_one_line(f"block {name} cannot be made", options):
        return entry(in_channels, **options)


def _names(kind: Callable[..., object], *but: str) -> tuple[str, ...]:
    """The parameters of a class or function, without some."""
    return tuple(name for name in inspect.signature(kind).parameters if name not in but)


def _plain(description: str, kind: Callable[..., nn.Module], *but: str) -> BlockEntry:
    """A block that keeps the shape by itself."""
    return BlockEntry(description=description, build=kind, options=_names(kind, "in_channels", *but))


def _piped(
    layers: str,
    source: str,
    layer: Callable[..., nn.Module],
    *but: str,
    kind: Callable[..., object],
    act: str | None = None,
) -> BlockEntry:
    """Layers in a :class:`Pipeline`; ``layer`` takes c of its input and of its output, and the options of ``kind``."""
    description = f"{layers} between two 1x1 convolutions, with a skip ({source})"
    own = _names(kind, "in_channels", "out_channels", *but)
    graph = _GRAPH if "graph" in own else ()

    def build(in_channels: int, **given: Any) -> Pipeline:
        outer = {"act": act} | {name: given.pop(name) for name in _PIPELINE if name in given}
        graph_options = {name: given.pop(name) for name in graph if name in given}

        def one(channels: int) -> nn.Module:
            return layer(channels, channels, **given, **({"graph": as_graph(**graph_options)} if graph else {}))

        return Pipeline(in_channels, one, **outer)

    options = (*_PIPELINE, *graph, *(name for name in own if name not in graph))
    return BlockEntry(description=description, build=build, options=options)


def _side_by_side(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Graph attention whose heads share its output channels between them."""

    def layer(channels: int, out: int, *, heads: int = 1, concat: bool = True, **options: Any) -> nn.Module:
        return kind(channels, divided("inner", out, heads) if concat else out, heads, concat, **options)

    return layer


#: Every block that can be asked for by name.
BLOCKS: dict[str, BlockEntry] = {
    "nonlocal": _plain("Non-Local block: every cell attends to all, with its own skip (Wang et al. 2018)", NonLocal),
    "attention": _piped(
        "self-attention layers",
        "Nicolicioiu & Duta",
        SelfAttention,
        kind=SelfAttention,
    ),
    "gcn": _piped(
        "graph convolutions",
        "Kipf & Welling 2017",
        partial(GCN, num_layers=1),
        *("hidden_channels", "num_layers", "act"),
        kind=GCN,
        act="relu",
    ),
    "gat": _piped(
        "graph attention",
        "Velickovic et al. 2018",
        _side_by_side(GAT),
        kind=GAT,
        act="elu",
    ),
    "gatv2": _piped(
        "graph attention that ranks neighbours per node,",
        "Brody et al. 2022",
        _side_by_side(GATv2),
        kind=GATv2,
        act="elu",
    ),
    "gin": _piped(
        "sums of neighbours through an MLP,",
        "Xu et al. 2019",
        GIN,
        kind=GIN,
        act="relu",
    ),
    "cheb": _piped(
        "Chebyshev polynomials of the Laplacian",
        "Defferrard et al. 2016",
        ChebNet,
        kind=ChebNet,
        act="relu",
    ),
    "chebygin": _piped(
        "Chebyshev polynomials scaled by degrees, an MLP,",
        "Knyazev et al. 2019",
        ChebyGIN,
        "act",
        kind=ChebyGIN,
        act="relu",
    ),
    "gc": _plain(
        "global context: one weighted mean of all cells, added to each (GCNet, Cao et al. 2019)", global_context
    ),
    "large_kernel": _plain(
        "k x 1 and 1 x k convolutions in both orders (GCN of Peng et al. 2017)", LargeKernel, "out_channels"
    ),
    "topk": _plain("keeps the cells with the largest scores, gated, and zeroes the rest (Gao & Ji 2019)", TopKPooling),
    "threshold": _plain(
        "keeps the cells with attention above a threshold and zeroes the rest (Knyazev et al. 2019)", ThresholdPooling
    ),
}
