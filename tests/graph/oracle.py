"""The independent oracle of the graph's tests: what a change of the input shows, by plain autograd and by changes in
float64.
"""

import copy

import numpy as np
import torch
from sound_norms import sound_norms
from torch import nn

import erfscope
from erfscope.core import OpenModel
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import Numbers
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.graph.record import record
from erfscope.core.system.containers import tensors_of
from erfscope.core.values.layout import Layout

FIRST = Layout()


class Net(nn.Module):
    """Parts by name and a forward that uses them: f(parts, x)."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.f(self, x)


def opened(module):
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

    def support(self, unit):
        """For every axis the (first, last) cell with a gradient, None if there is none. Nothing is shared with
        what is tested.
        """
        generator = torch.Generator().manual_seed(1)
        x = (torch.rand(1, self.channels, *self.space, generator=generator, dtype=torch.float64) + 0.5).requires_grad_(
            True
        )
        with sound_norms():
            out = self.layout.to_map(self.module(x))
        weights = torch.rand(out.shape[1], generator=generator, dtype=torch.float64) + 0.5
        (gradient,) = torch.autograd.grad((out[(0, slice(None), *unit)] * weights).sum(), x)
        seen = (gradient != 0).any(dim=1)[0].numpy()
        return tuple((int(cells.min()), int(cells.max())) for cells in np.nonzero(seen)) if seen.any() else None

    def sees_outside(self, unit, box):
        """Whether anything changes at the unit where everything outside a box of the input does."""
        inside = (..., *(slice(first, last + 1) for first, last in box))
        found = []
        for number in (0.5, 1e4):
            x = torch.full((1, self.channels, *self.space), number, dtype=torch.float64)
            x[inside] = torch.rand(x[inside].shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
            with torch.no_grad():
                found.append(self.layout.to_map(self.module(x))[(0, slice(None), *unit)])
        return not torch.equal(*found)


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
    seen = Seen(opened(module) if gates else module, space, **more)
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
