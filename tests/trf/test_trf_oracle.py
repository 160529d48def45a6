"""The independent oracle of the receptive field tests: the support of a gradient. Other test files take it from
here."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from erfscope.geometry.names import IMAGE
from erfscope.geometry.layout import Layout
from erfscope.trf.record import record

FIRST = Layout(order="channels_first")


def visit_with(module, layouts=None):
    """A stand-in for ``Adapter.visit``: hooks on every named module, the module's own output as stage "out"."""
    layouts = layouts or {}

    def visit(x, visitor):
        def layout(name, tensor):
            return layouts.get(name, FIRST if tensor.dim() == x.dim() else None)

        def before(name):
            def hook(_, args):
                if args and isinstance(args[0], torch.Tensor):
                    visitor(f"{name}:in", args[0], layout(f"{name}:in", args[0]))

            return hook

        def after(name):
            def hook(_, args, out):
                if isinstance(out, torch.Tensor):
                    visitor(name, out, layout(name, out))

            return hook

        visitor(IMAGE, x, FIRST)
        named = [(name, child) for name, child in module.named_modules() if name]
        handles = [child.register_forward_pre_hook(before(name)) for name, child in named]
        handles += [child.register_forward_hook(after(name)) for name, child in named]
        try:
            out = module(x)
            visitor("out", out, layout("out", out), stage=True)
        finally:
            for handle in handles:
                handle.remove()

    return visit


def recorded(module, space, *, channels=2, batch=1, layouts=None, train=False):
    """The recording of a meta copy of a module."""
    with torch.inference_mode(False):
        meta = copy.deepcopy(module).float().to("meta").train(train)
    return record(visit_with(meta, layouts), torch.empty(batch, channels, *space, device="meta"))


def opened(module):
    """The module in float64 with positive weights, so that nothing cancels: what can be seen is then seen."""
    module = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5)
    return module


def support_of(module, space, unit, *, channels=2, layout=FIRST, train=False):
    """For every axis the (first, last) cell with a gradient, None if there is none. Brute force: nothing is shared with
    what is tested."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(1, channels, *space, generator=generator, dtype=torch.float64) + 0.5).requires_grad_(True)
    out = layout.to_map(module.train(train)(x))
    # Random weights over the channels: a plain sum has no gradient behind a norm.
    weights = torch.rand(out.shape[1], generator=generator, dtype=torch.float64) + 0.5
    (gradient,) = torch.autograd.grad((out[(0, slice(None), *unit)] * weights).sum(), x)
    seen = (gradient != 0).any(dim=1)[0].numpy()
    if not seen.any():
        return None
    return tuple((int(cells.min()), int(cells.max())) for cells in np.nonzero(seen))


def covers(box, support):
    return all(first <= low and high <= last for (first, last), (low, high) in zip(box, support, strict=True))


def corners_and_middle(space):
    """Units worth looking at: the corners, the middle and one off the middle."""
    last = tuple(s - 1 for s in space)
    middle = tuple(s // 2 for s in space)
    return sorted({(0,) * len(space), last, middle, tuple(s // 3 for s in space), (last[0], *(0 for _ in space[1:]))})


def check(module, space, *, channels=2, layout=FIRST, equal=True, train=False, open_gates=True, global_by=None):
    """The field of several units against the gradient's support: never smaller, and (``equal``) no larger than what the
    borders leave."""
    module = opened(module) if open_gates else copy.deepcopy(module).double()
    recording = recorded(module, space, channels=channels, layouts={"out": layout}, train=train)
    (shape,) = (entry.shape for entry in recording.layers if entry.name == "out")
    for unit in corners_and_middle(shape[2:]):
        support = support_of(module, space, unit, channels=channels, layout=layout, train=train)
        field = recording.trf("out", unit)
        assert field.exact, field.inexact_by
        assert support is not None
        assert covers(field.clipped_box_px, support), (unit, field, support)
        if equal:
            assert field.clipped_box_px == support, (unit, field, support)
        assert (field.global_by or "").startswith(global_by or ""), field.global_by
        assert field.is_global == (global_by is not None), field.global_by
    return recording


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 0)])
def test_the_oracle_sees_exactly_the_window_of_one_convolution(kernel, padding):
    module = opened(nn.Conv2d(2, 3, kernel, padding=padding))
    support = support_of(module, (12, 10), (4, 3))
    assert support == ((4 - padding, 4 - padding + kernel - 1), (3 - padding, 3 - padding + kernel - 1))
