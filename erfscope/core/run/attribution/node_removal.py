"""The loss of a unit when one node of a feature map is removed: an influence that needs no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.core.adapter import Adapter
from erfscope.core.answer.convention import Convention
from erfscope.core.graph.site import Site
from erfscope.core.run.attribution.forward import ModelForward, Question
from erfscope.core.run.attribution.gradient import Contribution, in_double, without_nonfinite
from erfscope.core.run.attribution.readout import unit_channels
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit import Unit

#: How many copies of an image go through the model together, each with another node removed.
AT_ONCE = 8


def removal_draws(adapter: Adapter, x: Tensor, question: Question) -> Iterator[Iterator[Contribution]]:
    """How much each unit changes without each node of the reference, node by node: |y_i - y|, whose share of the sum is
    the influence.

    A node is removed by setting its channels to zero. There is nothing random in it: under ``jacobian`` and ``energy``
    the change is the exact norm over the unit's channels, under the others that of the readout.

    Args:
        adapter: The model.
        x: One input, (1, C_in, *space).
        question: What is asked; its reference is the module output or input whose nodes are removed.

    Yields:
        One :class:`erfscope.core.run.attribution.gradient.Contribution` per unit.

    Raises:
        ErfscopeError: the reference is an item of a container.

    Source: Knyazev et al. 2019, weakly supervised attention, arXiv:1905.02850; the norm of the difference where y is a
    vector."""
    site, convention = question.site, question.convention
    wrt = site.wrt
    module = dict(adapter.module.named_modules()).get(wrt.removesuffix(":in"))
    if module is None:
        raise ErfscopeError(
            f"occlusion with respect to {wrt!r} needs a module of that name; container items work with --method"
            " gradient"
        )
    (features,) = ModelForward(adapter, question)(x, with_gradients=False)
    whole = [unit_channels(features.map, unit) for unit in question.units]
    layout, space = features.reference.layout, features.reference.space
    removal = partial(_without, module, layout=layout, is_input=wrt.endswith(":in"))
    # What is run with a node removed is read at the layer alone.
    forward = ModelForward(adapter, replace(question, site=Site(site.recording, site.layer)))
    for unit, y in zip(question.units, whole, strict=True):
        removed = _without_nodes(forward, x, unit, removal, math.prod(space))
        g = _as_gradients(convention, y, in_double(y - removed), space)
        maps = torch.stack([convention.contribution(each) for each in g]).sum(0)
        value = in_double(y)
        yield iter([Contribution(maps=without_nonfinite(maps, value.isfinite().all(1)), value=value)])


def _without_nodes(
    forward: ModelForward, x: Tensor, unit: Unit, removal: Callable[[Tensor], Any], count: int
) -> Tensor:
    """Channels of the unit without each node in turn, (count, C), nodes row by row."""
    found = []
    for nodes in torch.split(torch.arange(count, device=x.device), AT_ONCE):
        handle = removal(nodes)
        try:
            (features,) = forward(x.expand(len(nodes), *x.shape[1:]), with_gradients=False)
        finally:
            handle.remove()
        found.append(unit_channels(features.map, unit))
    return torch.cat(found)


def _without(module: nn.Module, nodes: Tensor, *, layout: Layout, is_input: bool) -> Any:
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
