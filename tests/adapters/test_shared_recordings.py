"""Recordings that models of one structure share: made once for all seeds, and of nothing else."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
import torch

import erfscope
from erfscope.adapters import recorded
from erfscope.core import Request, open_model, sharing_recordings

SPEC = "test_resnet"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What was recorded: the spec with its options and edits, and the shape of the input."""
    found, record = list[tuple[object, ...]](), recorded._recorded_graph

    def count(adapter, x):
        found.append((adapter.structure, tuple(x.shape)))
        return record(adapter, x)

    monkeypatch.setattr(recorded, "_recorded_graph", count)
    return found


def opened(**options):
    """A small net, recorded."""
    model = open_model(SPEC, Request.parse({"input_size": 32, "weights": "random", **options}))
    assert model.recording.layers
    return model


@pytest.mark.slow
@pytest.mark.parametrize("insert", [None, "layer2: dilation=2", "layer2: kernel=5", "nonlocal@layer2"])
def test_a_map_is_the_same_bit_by_bit_with_a_shared_recording(insert):
    def measured(seed):
        result = erfscope.analyze(
            SPEC, input_size=32, weights="random", samples=1, seed=seed, insert=insert, measures="r50"
        )
        return result.map.values, result.weights.sha256, result["r50"]

    alone = [measured(seed) for seed in (0, 1)]
    with sharing_recordings():
        shared = [measured(seed) for seed in (0, 1)]
    for (ours, weights, size), (theirs, same, other) in zip(alone, shared, strict=True):
        assert torch.equal(torch.tensor(ours), torch.tensor(theirs))
        assert (weights, size) == (same, other)
    assert alone[0][1] != alone[1][1]


def test_seeds_share_a_recording_and_other_structures_have_their_own(made):
    with sharing_recordings():
        one, other = opened(seed=0), opened(seed=1)
        assert len(made) == 1
        assert one.recording.graph is other.recording.graph
        # Each reads its own numbers.
        assert one.recording is not other.recording
        opened(insert="layer2: dilation=2")
        opened(insert="layer2: dilation=3")
        opened(input_size=48)
        assert len({*made}) == len(made) == 4
    opened(seed=0)
    assert len(made) == 5


def test_a_module_of_the_callers_and_a_factory_share_nothing(made, tmp_path):
    file = tmp_path / "nets.py"
    file.write_text("from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())\n")
    with sharing_recordings():
        for _ in range(2):
            for model in (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), f"{file}:net"):
                assert open_model(model, input_size=16).recording.layers
    assert len(made) == 4


@pytest.mark.slow
def test_shared_graphs_hold_no_model_and_are_bounded(made, monkeypatch):
    with sharing_recordings():
        held = weakref.ref(opened(seed=0).module)
        gc.collect()
        assert held() is None
        nodes = len(opened(seed=1).recording.graph.nodes)
    monkeypatch.setattr(recorded, "MOST_NODES", nodes)
    made.clear()
    with sharing_recordings():
        for seed in (0, 1):
            opened(seed=seed)
            opened(seed=seed, insert="layer2: dilation=2")
    # The first is kept, and there is no room for the second.
    assert len(made) == 3


@pytest.mark.slow
def test_a_search_records_every_candidate_once_for_each_number_of_images(made, monkeypatch):
    monkeypatch.setattr("erfscope.apps.advise.candidates.MOST_PARTS", 1)
    monkeypatch.setattr("erfscope.apps.advise.candidates.WIDE_BLOCKS", ())
    monkeypatch.setattr("erfscope.apps.advise.halving.MOST_DRAWS", 4)
    stops = iter([False] * 30)
    search = erfscope.advise(
        SPEC, target="r50>=1000", input_size=32, samples=2, time=600, stop=lambda: next(stops, True)
    ).search
    assert sum(len(trial.values) for trial in search.trials) > len(search.trials) > 2
    assert max(Counter(made).values()) == 1
    assert len(made) <= 2 * len(search.trials)
