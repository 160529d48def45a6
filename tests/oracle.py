"""The independent oracles of what holds for any net: plain autograd on the whole image, one image at a time where
images meet, and what a change of the input shows, in float64. Nothing here is shared with what is tested.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

import erfscope
from erfscope.core import OpenModel
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import Numbers
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.record import record
from erfscope.core.run.attribution import AskedUnits, Contribution, ForwardPass, Question, of_units
from erfscope.core.system.containers import tensors_of
from erfscope.core.values.layout import Layout

FIRST = Layout()

#: Norms of which PyTorch 2.14's gradient is wrong on the CPU.
NORMS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


class sound_norms(TorchFunctionMode):
    """Within it the norms of a forward pass get their gradient in the order of memory in which they are right.

    PyTorch 2.14 mixes up channels and positions where a batch norm or an instance norm of one image (1, C, H, W), or
    (1, C, D, H, W), frozen or not, gets a gradient whose channels lie side by side in memory, as behind
    ``flatten(2).transpose(1, 2)``: it takes the gradient for one in the order of its input. Two images it computes
    rightly.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in NORMS and isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(Tensor.contiguous)
        return out


Index = tuple[int, ...]
Box = tuple[tuple[int, int], ...]


def output_of(module: nn.Module, x: Any, layer: str = "output") -> Any:
    """What a layer returns: caught by a hook, and of a container the item that the name ends in."""
    name, *keys = re.split(r"[\[\]]+", layer.rstrip("]"))
    found: list[Any] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        for key in keys:
            output = output[int(key) if isinstance(output, list | tuple) else key]
        # What is worked on in place later is another tensor.
        found.append(output.clone() if isinstance(output, Tensor) else output)

    handle = (module if name == "output" else module.get_submodule(name)).register_forward_hook(keep)
    try:
        module(x)
    finally:
        handle.remove()
    return found[-1]


def plain_gradient(
    module: nn.Module, x: Tensor, read: Callable[[Any], Tensor], layer: str = "output", wrt: str = "image"
) -> Tensor:
    """The gradient of the sum of what is read of a layer's output, by hooks and ``torch.autograd.grad`` alone, with
    respect to the input, or to the output ("NAME") or input ("NAME:in") of a module."""
    leaf, seen = x.detach().clone().requires_grad_(True), {}

    def refer(tensor: Tensor) -> None:
        # The tensor object itself is another one after an operation in place.
        seen["edge"], seen["like"] = get_gradient_edge(tensor), tensor.detach()

    handles = []
    if wrt.endswith(":in"):
        part = module.get_submodule(wrt.removesuffix(":in"))
        handles.append(part.register_forward_pre_hook(lambda _m, args: refer(args[0])))
    elif wrt != "image":
        handles.append(module.get_submodule(wrt).register_forward_hook(lambda _m, _a, out: refer(out)))
    try:
        with sound_norms():
            value = read(output_of(module, leaf, layer)).sum()
    finally:
        for handle in handles:
            handle.remove()
    if not value.requires_grad:
        return torch.zeros_like(seen.get("like", leaf))
    (gradient,) = torch.autograd.grad(value, seen.get("edge", leaf), allow_unused=True)
    return torch.zeros_like(seen.get("like", leaf)) if gradient is None else gradient


def weighted(y: Tensor, _signs: Tensor | None = None) -> Tensor:
    """A readout (B, C) -> (B,) with another weight for each channel: a sum would hide errors behind a norm that centres
    the channels."""
    return (y * torch.cos(torch.arange(y.shape[1]).to(y) + 0.3)).sum(1)


def plain_map(
    module: nn.Module,
    x: Tensor,
    layer: str,
    unit: Index,
    wrt: str = "image",
    to_map: Callable[[Tensor], Tensor] = lambda y: y,
) -> Tensor:
    """The contributions (B, *space) of one unit, read by :func:`weighted`, on the whole image."""
    gradient = plain_gradient(module, x, lambda y: weighted(to_map(y)[(slice(None), slice(None), *unit)]), layer, wrt)
    return (gradient if wrt == "image" else to_map(gradient)).abs().sum(1)


def support(module: nn.Module, x: Tensor, read: Callable[[Any], Tensor], layer: str = "output") -> Box | None:
    """Along each axis the (first, last) cell of the input with a gradient; None if there is none."""
    seen = (plain_gradient(module, x, read, layer) != 0).any(1).any(0).numpy()
    return tuple((int(cells.min()), int(cells.max())) for cells in np.nonzero(seen)) if seen.any() else None


def sees_outside(module: nn.Module, x: Tensor, read: Callable[[Any], Tensor], box: Box, layer: str = "output") -> bool:
    """Whether anything that is read changes where everything outside a box of the input does."""
    inside, found = (..., *(slice(first, last + 1) for first, last in box)), []
    for number in (0.5, 1e4):
        other = torch.full_like(x, number)
        other[inside] = x[inside]
        with torch.no_grad():
            found.append(read(output_of(module, other, layer)))
    return not torch.equal(*found)


def scrambled(net: nn.Module) -> nn.Module:
    """In float64, with statistics and gains that are not those of a fresh net, which would make many errors vanish."""
    g = torch.Generator().manual_seed(7)
    for module in net.modules():
        for name in ("gamma", "ls1", "ls2"):
            if isinstance(getattr(module, name, None), nn.Parameter):
                getattr(module, name).data.fill_(0.7)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None:
                module.running_mean.normal_(generator=g).mul_(0.1)
                module.running_var.uniform_(0.7, 1.5, generator=g)
            if module.affine:
                module.weight.data.uniform_(0.5, 1.5, generator=g)
                module.bias.data.normal_(generator=g).mul_(0.1)
    return net.double().eval()


def positive(module):
    """The module in float64 with positive weights, so that nothing cancels: what can be seen is then seen."""
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5)
    return module


def load(module, space, channels=3, **options):
    """A model as it is measured, with its recorded pass and its fields by the names of its layers."""
    return OpenModel(erfscope.wrap(module, input_size=space, in_chans=channels, **options), "net")


class Seen:
    """One recorded pass of a module, with the places and the fields of its output."""

    def __init__(self, module, space, *, channels=2, batch=2, train=False, layer="", layout=None):
        self.module = copy.deepcopy(module).double().train(train)
        self.channels, self.space = channels, space
        self.graph = record(self.module, (torch.rand(batch, channels, *space, dtype=torch.float64),))
        self.positions = GraphPositions(self.graph, Numbers(self.graph, tensors_of(self.module)))
        self.fields = Fields(self.positions, self.positions.image, FIRST)
        (self.node,) = self.graph.marks[layer].outputs.values()
        self.reading = self.positions.reading(self.node)
        self.layout = layout or self.reading.layout or FIRST

    @property
    def grid(self):
        return self.layout.space(tuple(self.node.meta["val"].shape))

    def trf(self, unit):
        return self.fields.trf(self.node, self.layout, unit)

    def read(self, unit):
        return lambda y: weighted(self.layout.to_map(y)[(slice(None), slice(None), *unit)])

    def numbers(self):
        shape = (1, self.channels, *self.space)
        return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5

    def support(self, unit):
        """Along each axis the (first, last) cell with a gradient, None if there is none."""
        return support(self.module, self.numbers(), self.read(unit))

    def sees_outside(self, unit, box):
        """Whether anything changes at the unit where everything outside a box of the input does."""
        return sees_outside(self.module, self.numbers(), self.read(unit), box)


def contributions_of(
    forward: ForwardPass, x: Tensor, question: Question, images: Sequence[int]
) -> Iterator[Iterator[Contribution]]:
    """For each unit of a question its contributions, one for each draw, made as they are asked for."""
    asked = AskedUnits(question, question.units, range(len(question.units)))
    for _, draws in of_units([(forward, [asked])], x, images):
        yield (each for (each,) in draws)


def units_of(space):
    """Units worth looking at: the corners, the middle and one off the middle."""
    last = tuple(side - 1 for side in space)
    middle = tuple(side // 2 for side in space)
    return sorted(
        {(0,) * len(space), last, middle, tuple(side // 3 for side in space), (last[0], *(0 for _ in space[1:]))}
    )


def check(module, space, *, equal=True, gates=True, global_by=None, **more):
    """The field of several units against brute force: never smaller, and (``equal``) exactly what a change of the
    input shows.
    """
    seen = Seen(positive(module) if gates else module, space, **more)
    for unit in units_of(seen.grid):
        support, field = seen.support(unit), seen.trf(unit)
        assert field.exact, field.inexact_by
        assert support is not None
        assert all(
            first <= low and high <= last
            for (first, last), (low, high) in zip(field.clipped_box_px, support, strict=True)
        )
        assert not seen.sees_outside(unit, field.clipped_box_px)
        assert not equal or field.clipped_box_px == support, (unit, field.clipped_box_px, support)
        assert (field.global_by or "").startswith(global_by or ""), field.global_by
        assert field.is_global == (global_by is not None), field.global_by
    return seen
