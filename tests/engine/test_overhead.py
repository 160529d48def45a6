"""What a call costs besides the model, counted: waits for the device, backward passes, functions of ours."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import erfscope
from erfscope.core.run.attribution import gradient

pytestmark = pytest.mark.usefixtures("memory_unplanned")

#: What waits for the device, or copies from it.
WAITS = (
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.__array__, Tensor.nonzero, torch.nonzero, torch.equal),
    *(Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.equal, Tensor.__contains__),
)
ROOT = Path(erfscope.__file__).resolve().parent.parent


class Waits(TorchFunctionMode):
    """Count operations that would wait for a graphics processor, and copies to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        moves = function is Tensor.to and any(
            isinstance(each, torch.device | str) for each in (*args, *kwargs.values())
        )
        if function in WAITS or moves:
            self.count[function.__name__] += 1
        return function(*args, **kwargs)


def adapter(norm: bool = False):
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8) if norm else nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return erfscope.wrap(nn.Sequential(*parts).eval(), input_size=32)


@pytest.mark.parametrize(
    ("convention", "norm"), [("replknet", False), ("replknet", True), ("jacobian", True), ("luo", False)]
)
def test_a_batch_waits_for_the_device_twice_and_an_analysis_six_times(monkeypatch, convention, norm):
    model, images = adapter(norm), torch.randn(20, 3, 32, 32)
    passes, backward = [], gradient.backward
    monkeypatch.setattr(gradient, "backward", lambda *given, **words: passes.append(1) or backward(*given, **words))
    waited = {}
    for number in (4, 20):
        asked = {"images": images[:number], "batch_size": 4, "convention": convention}
        erfscope.analyze(model, **asked)
        passes.clear()
        with Waits() as waits:
            erfscope.analyze(model, **asked)
        waited[number] = sum(waits.count.values())
        draws = 2 if convention == "jacobian" and number == 4 else 1
        assert len(passes) == draws * number / 4
    assert waited[20] - waited[4] <= 4 * 2, waits.count
    assert waited[4] <= 6 + 2, waits.count


def test_few_functions_of_ours_run_at_a_second_call():
    model, asked = adapter(), {"images": torch.randn(1, 3, 32, 32), "convention": "replknet"}
    erfscope.analyze(model, **asked)
    calls: Counter[str] = Counter()

    def count(frame, event, _argument):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT / "erfscope"):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        erfscope.analyze(model, **asked)
    finally:
        sys.setprofile(None)
    assert calls.total() <= 1500, calls.most_common(20)
