"""Rows: one for each value that was asked for, and nothing kept of a model afterwards."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest
from torch import Tensor, nn

import erfscope

SMALL = {"input_size": 16, "samples": 1, "measures": "r50"}


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))


@dataclass
class Power:
    """A contribution rule that cannot be hashed."""

    exponent: float = 2.0

    def __call__(self, g: Tensor) -> Tensor:
        return g.abs().pow(self.exponent).sum(1)


@pytest.mark.slow
def test_a_value_that_stands_twice_is_a_row_twice():
    assert [row.input.size for row in erfscope.sweep(net(), **SMALL | {"input_size": "16,16"})] == [(16, 16)] * 2
    report = erfscope.compare({"a": net(), "b": net()}, convention=["energy", "energy"], **SMALL)
    assert [row.label for row in report] == ["a", "b", "a", "b"]


def test_a_convention_that_cannot_be_hashed_is_measured():
    result = erfscope.analyze(net(), convention=(lambda y, _signs: y.sum(1), Power()), **SMALL)
    assert result.ok


def test_of_a_model_that_was_measured_nothing_is_kept():
    model = net()
    weights = [weakref.ref(weight) for weight in model.parameters()]
    result = erfscope.analyze(model, layer="2", wrt="0", **SMALL)
    gc.disable()
    try:
        del model
        assert result.ok
        assert not any(weight() is not None for weight in weights)
    finally:
        gc.enable()
