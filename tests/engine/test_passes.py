"""A measured batch is one forward pass, from the first batch on, recording aside."""

import pytest
from loaded import adapter_of

import erfscope
from erfscope.adapters import load, recorded
from erfscope.core.graph.run import Forward


@pytest.fixture
def passes(monkeypatch):
    """What runs: the number of images of each recorded pass, of each pass of the graph and of each of the model."""
    found = {"recorded": [], "graph": [], "model": []}
    record, run = recorded.record, Forward.__call__

    def recording(module, inputs, **options):
        found["recorded"].append(len(inputs[0]))
        return record(module, inputs, **options)

    def running(forward, image):
        found["graph"].append(len(image))
        return run(forward, image)

    monkeypatch.setattr(recorded, "record", recording)
    monkeypatch.setattr(Forward, "__call__", running)
    return found


@pytest.fixture
def adapter(passes):
    adapter = load("test_resnet", weights="random", input_size=64)
    features = adapter.features

    def counted(x, *arguments, **options):
        passes["model"].append(len(x))
        return features(x, *arguments, **options)

    adapter.features = counted
    return adapter


@pytest.mark.slow
def test_a_first_call_records_and_a_second_does_not(adapter, passes):
    for graph in ([8], [8, 8]):
        erfscope.analyze(adapter, samples=8, batch_size=8)
        assert passes == {"recorded": [2, 8], "graph": graph, "model": []}


@pytest.mark.parametrize(
    ("asked", "recorded", "graph", "model"),
    [
        ({"samples": 1}, [2], [1], []),
        ({"samples": 11, "batch_size": 4}, [2, 4], [4, 4, 3], []),  # fewer take the recorded pass of a full batch
        ({"samples": 8, "batch_size": 8, "plain": True}, [2], [], [8]),
    ],
)
def test_each_batch_is_one_pass(adapter, passes, asked, recorded, graph, model):
    erfscope.analyze(adapter, **asked)
    assert passes == {"recorded": recorded, "graph": graph, "model": model}


@pytest.mark.slow
def test_the_first_image_alone_tells_a_readout_from_rounding_noise_where_something_normalises(adapter, passes):
    erfscope.analyze(adapter_of("test_vit"), samples=8, batch_size=8, convention="replknet")
    assert passes["graph"] == [1, 7]
    erfscope.analyze(adapter, samples=8, batch_size=8, convention="replknet")
    assert passes["graph"] == [1, 7, 8]


def test_units_together_are_one_pass(adapter, passes):
    erfscope.sweep(adapter, samples=2, unit="grid:6")
    assert passes["graph"] == [2]
