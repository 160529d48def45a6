"""Exported programs are measured as the models they were, and bring no code with them."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SmallNet
from nets import Does
from one_line import one_line
from torch import Tensor, nn
from torch.export import Dim

import erfscope

SIZE = (32, 40)


def export(module: nn.Module, path: Path, *inputs: Tensor, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own internals
        torch.export.save(torch.export.export(module, inputs, **options), path)
    return path


def batch(count: int, **options: Any) -> Tensor:
    return torch.zeros(count, 3, *SIZE, **options)


class Attending(nn.Module):
    """A model that writes its batch of one and its dtype into the program, with views and a conversion, and ends in a
    LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.convert = torch.float32
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.mix = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).mT.to(self.convert)
        q, k, v = self.mix(x).reshape(x.shape[0], 20, 3, 8).unbind(2)
        return self.norm(x + nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.fixture(scope="module")
def net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet().eval()


@pytest.fixture(scope="module")
def attending() -> Attending:
    torch.manual_seed(1)
    return Attending().eval()


@pytest.fixture(scope="module")
def files(net: SmallNet, attending: Attending, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    some, sides = {"x": {0: Dim("batch")}}, {"x": {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}}
    return {
        "one": export(net, folder / "one.pt2", batch(1)),
        "many": export(net, folder / "many.pt2", batch(2), dynamic_shapes=some),
        "any size": export(net, folder / "any.pt2", batch(2), dynamic_shapes=sides),
        "attending": export(attending, folder / "attending.pt2", batch(1)),
    }


def measured(model: Any, **options: Any) -> erfscope.Result:
    asked = {"layer": "down", "samples": 2, "device": "cpu", "mean": 0.5, "std": 0.25, "dtype": "float64"}
    asked |= {"measures": "r50", "unsafe_load": isinstance(model, str)}
    return erfscope.analyze(model, **asked | options)


def off(ours: erfscope.Result, theirs: erfscope.Result) -> float:
    return np.abs(ours.map.values - theirs.map.values).max() / theirs.map.values.max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "many", "any size"])
def test_the_map_of_a_program_is_that_of_its_model(net, files, kind):
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-6)):
        ours = measured(str(files[kind]), dtype=dtype)
        theirs = measured(net, dtype=dtype, input_size=SIZE)
        assert ours.ok
        assert off(ours, theirs) <= tolerance
        assert (ours.trf, ours.unit, ours.input.size) == (theirs.trf, theirs.unit, SIZE)
    weights = ours.weights
    assert (weights.source, weights.origin, weights.unsafe_load) == ("exported", str(files[kind]), True)
    assert weights.sha256 == hashlib.sha256(files[kind].read_bytes()).hexdigest()
    assert "unsafe_load" in [finding.code for finding in ours.findings]


@pytest.mark.slow
def test_a_program_that_knows_its_example_alone_gets_one_image_at_a_time(attending, files):
    for layer in ("patches", "norm"):
        ours = measured(str(files["attending"]), layer=layer, dtype="float32")
        theirs = measured(attending, layer=layer, dtype="float32", input_size=SIZE, batch_size=1)
        assert off(ours, theirs) <= 1e-6
        assert ours.trf == theirs.trf


@pytest.mark.slow
def test_the_default_layer_of_a_program_is_that_of_its_model(net, attending, files):
    attending.convert = torch.float64
    assert measured(str(files["one"]), layer=None).layer == measured(net, layer=None, input_size=SIZE).layer == "down"
    # The norm at its end takes no layer's output but a sum, so that its own is the deepest map.
    program, module = (str(files["attending"]), "float32", {}), (attending, "float64", {"input_size": SIZE})
    for model, dtype, more in (program, module):
        assert measured(model, layer=None, dtype=dtype, **more).layer == "output"


@pytest.mark.slow
def test_everything_else_works_as_with_any_module(net, files):
    spec = str(files["one"])
    names = [row.name for row in erfscope.layers(spec, unsafe_load=True).rows]
    assert [name for name in names if name in ("stem", "body", "down")] == ["stem", "body", "down"]
    assert erfscope.theoretical(spec, layer="down", unsafe_load=True) == erfscope.theoretical(
        net, layer="down", input_size=SIZE
    )
    ours, theirs = (measured(model, wrt="stem", **more) for model, more in ((spec, {}), (net, {"input_size": SIZE})))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    options = {"layer": "down", "samples": 1, "device": "cpu", "unsafe_load": True, "measures": "r50"}
    assert [result.status for result in erfscope.sweep(spec, insert="gcn@body", **options)] == ["ok", "ok"]


@pytest.mark.slow
def test_an_input_size_is_the_examples_or_within_what_was_left_open(net, files):
    ours, theirs = (measured(model, input_size=48) for model in (str(files["any size"]), net))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    exported = "was exported for 3 input channels at 32x40, not"
    for options, words in (
        ({"input_size": 48}, f"{exported} 3 at 48x48; export it again with dynamic_shapes"),
        ({"in_chans": 1}, f"{exported} 1 at 32x40"),
        ({"model_kwargs": {"depth": 3}}, r"takes no options \(depth\)"),
    ):
        one_line(lambda options=options: measured(str(files["many"]), **options), words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "words"),
    [
        (lambda: Does(lambda m, x: x + 1), (torch.zeros(1, 3),), "none of the example inputs .* is a floating"),
        (
            lambda: SmallNet().train(),
            (batch(2),),
            r"was exported in training mode; call model.eval\(\) first and export it again",
        ),
    ],
)
def test_a_program_that_cannot_be_measured_says_why(tmp_path, make, inputs, words):
    file = export(make(), tmp_path / "net.pt2", *inputs)
    one_line(lambda: erfscope.theoretical(str(file), unsafe_load=True), words)


def test_a_file_that_is_no_program_is_one_line(tmp_path, files):
    contents = {"empty": b"", "text": b"hello", "cut": files["one"].read_bytes()[:-300]}
    saved = io.BytesIO()
    torch.save(SmallNet().state_dict(), saved)
    for name, content in {**contents, "weights": saved.getvalue()}.items():
        file = tmp_path / f"{name}.pt2"
        file.write_bytes(content)
        words = r"write it with .*torch.export.save\(program, FILE\)"
        one_line(lambda file=file: erfscope.theoretical(str(file), unsafe_load=True), words)


def test_a_program_is_read_only_where_it_is_trusted(files, monkeypatch):
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch was given the file"))
    words = r"may run code when torch reads it; if you trust the file, add --unsafe-load"
    one_line(lambda: erfscope.analyze(str(files["one"])), words)
