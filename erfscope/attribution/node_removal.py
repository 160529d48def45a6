"""The loss of a unit when one node of a feature map is removed: an influence that needs no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapter import Adapter, Features
from erfscope.attribution.convention import Convention
from erfscope.attribution.gradient import Contribution, guarded, in_double, without_nonfinite
from erfscope.attribution.readout import as_leaf, unit_channels
from erfscope.errors import ErfscopeError
from erfscope.geometry.layout import Layout
from erfscope.geometry.unit import Unit

#: How many copies of an image go through the model together, each with another node removed.
AT_ONCE = 8


def removal_draws(
    adapter: Adapter,
    x: Tensor,
    units: Sequence[Unit],
    convention: Convention,
    *,
    layer: str,
    wrt: str,
    images: Sequence[int],
    known: Mapping[str, Layout] | None = None,
) -> Iterator[Contribution]:
    """How much each unit changes without each node of the reference, node by node: |y_i - y|, whose share of the sum is
    the influence.

    A node is removed by setting its channels to zero. There is nothing random in it: under ``jacobian`` and ``energy``
    the change is the exact norm over the unit's channels, under the others that of the readout.

    Args:
        adapter: The model.
        x: Inputs (B, C_in, *space).
        units: Units of ``layer``'s map.
        convention: What is read of a unit, and what a map of changes contributes.
        layer: Layer name.
        wrt: The module output or input whose nodes are removed.
        images: Global index of each input.
        known: How the layer and the reference hold their maps; found by a recorded pass if None.

    Yields:
        One :class:`erfscope.attribution.gradient.Contribution` per input and unit.

    Raises:
        ErfscopeError: the reference is an item of a container.

    Source: Knyazev et al. 2019, weakly supervised attention, arXiv:1905.02850; the norm of the difference where y is a
    vector."""
    module = dict(adapter.module.named_modules()).get(wrt.removesuffix(":in"))
    if module is None:
        raise ErfscopeError(
            f"occlusion with respect to {wrt!r} needs a module of that name; container items work with --method"
            " gradient"
        )
    for position in range(len(images)):
        single = x[position : position + 1]
        with guarded(x.device):
            features = adapter.features(as_leaf(single), layer, wrt, known=known)
            whole = [unit_channels(features.map, unit).detach() for unit in units]
        parts = [
            _changes(adapter, single, module, features, unit, y, layer, wrt, known)
            for unit, y in zip(units, whole, strict=True)
        ]
        for number, (y, change) in enumerate(zip(whole, parts, strict=True)):
            g = _as_gradients(convention, y, change, features.reference.space)
            maps = torch.stack([convention.contribution(each) for each in g]).sum(0)
            yield Contribution(unit=number, draw=0, maps=without_nonfinite(maps, y))


def _changes(
    adapter: Adapter,
    x: Tensor,
    module: nn.Module,
    features: Features,
    unit: Unit,
    y: Tensor,
    layer: str,
    wrt: str,
    known: Mapping[str, Layout] | None,
) -> Tensor:
    """Channels of the unit minus those without each node, (n, C) float64, nodes row by row."""
    layout, count = features.reference.layout, math.prod(features.reference.space)
    parts = []
    for first in range(0, count, AT_ONCE):
        nodes = torch.arange(first, min(first + AT_ONCE, count), device=x.device)
        handle = _without(module, nodes, layout, is_input=wrt.endswith(":in"))
        try:
            with guarded(x.device), torch.no_grad():
                found = unit_channels(
                    adapter.features(x.expand(len(nodes), *x.shape[1:]).clone(), layer, known=known).map, unit
                )
        finally:
            handle.remove()
        parts.append(in_double(y - found))
    return torch.cat(parts)


def _without(module: nn.Module, nodes: Tensor, layout: Layout, *, is_input: bool) -> Any:
    """A hook that removes one node of each image of the batch."""

    def removed(tensor: Tensor) -> Tensor:
        values = layout.to_map(tensor).clone()
        values.flatten(2)[torch.arange(len(nodes), device=tensor.device), :, nodes] = 0
        return layout.from_map(values, tensor)

    if is_input:
        before: Callable[..., Any] = lambda _m, args: (removed(args[0]), *args[1:])  # noqa: E731
        return module.register_forward_pre_hook(before)
    return module.register_forward_hook(lambda _m, _args, output: removed(output))


def _as_gradients(convention: Convention, y: Tensor, change: Tensor, space: tuple[int, ...]) -> list[Tensor]:
    """The changes as maps (1, 1, *space) that a contribution can be taken of: one per channel, or one of the
    readout."""
    if convention.random:
        columns = list(change.unbind(1))
    else:
        whole = y.to(change)
        columns = [convention.readout(whole, None) - convention.readout(whole - change, None)]
    return [column.reshape(1, 1, *space) for column in columns]
