"""An adapter is recorded once, whatever its weights become; a bare module is recorded at every call, so that edits
count."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import erfscope
from erfscope.adapters import recorded

WORDS = {"samples": 2, "layer": "output", "convention": "luo", "measures": "r50", "dtype": "float64"}
SIZE = {"input_size": (12, 12)}


def net(kernel: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 4, kernel, padding=kernel // 2)
    ).double()


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were recorded."""
    found: list[str] = []
    run = recorded._recorded
    monkeypatch.setattr(recorded, "_recorded", lambda adapter: (found.append(adapter.spec), run(adapter))[1])
    return found


def test_an_adapter_is_recorded_once_and_its_weights_count_at_each_call(recordings):
    module = net()
    adapter = erfscope.wrap(module, **SIZE)
    erfscope.analyze(adapter, **WORDS)
    with torch.no_grad():
        module[0].weight.mul_(torch.linspace(0.1, 2, 9, dtype=torch.float64).view(3, 3))
    again = erfscope.analyze(adapter, **WORDS)
    erfscope.theoretical(adapter)
    assert len(recordings) == 1
    torch.testing.assert_close(
        torch.tensor(again.map.values), torch.tensor(erfscope.analyze(module, **WORDS, **SIZE).map.values)
    )


def test_an_edited_module_is_recorded_as_it_is(recordings):
    module = net()
    erfscope.analyze(module, **WORDS, **SIZE)
    module[2] = net(7)[2]
    found = erfscope.analyze(module, **WORDS, **SIZE)
    assert len(recordings) == 2
    assert found.trf.size_px == (9, 9)


@pytest.mark.slow
def test_a_model_that_is_measured_is_not_kept_alive():
    module = net()
    adapter = erfscope.wrap(module, **SIZE)
    erfscope.analyze(adapter, **WORDS)
    gone = weakref.ref(module)
    del module, adapter
    gc.collect()
    assert gone() is None
