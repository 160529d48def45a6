"""Exported programs are measured as the models they were, and bring no code with them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SmallNet
from torch import Tensor, nn
from torch.export import Dim

import erfscope
from erfscope import ErfscopeError

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
    asked = {
        "layer": "down",
        "samples": 3,
        "device": "cpu",
        "mean": 0.5,
        "std": 0.25,
        "dtype": "float64",
        "unsafe_load": isinstance(model, str),
        **options,
    }
    return erfscope.analyze(model, **asked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "many", "any size"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_the_map_of_a_program_is_that_of_its_model(
    net: SmallNet, files: dict[str, Path], kind: str, dtype: str, tolerance: float
) -> None:
    ours = measured(str(files[kind]), dtype=dtype)
    theirs = measured(net, dtype=dtype, input_size=SIZE)
    assert ours.ok
    assert np.abs(ours.map.values - theirs.map.values).max() <= tolerance * theirs.map.values.max()
    assert (ours.trf, ours.unit, ours.input.size) == (theirs.trf, theirs.unit, SIZE)


@pytest.mark.slow
def test_a_program_that_knows_its_example_alone_gets_one_image_at_a_time(
    attending: Attending, files: dict[str, Path]
) -> None:
    for layer in ("patches", "norm"):
        ours = measured(str(files["attending"]), layer=layer, dtype="float32")
        theirs = measured(attending, layer=layer, dtype="float32", input_size=SIZE, batch_size=1)
        assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-6 * theirs.map.values.max()
        assert ours.trf == theirs.trf


@pytest.mark.slow
def test_the_default_layer_of_a_program_is_that_of_its_model(
    net: SmallNet, attending: Attending, files: dict[str, Path]
) -> None:
    attending.convert = torch.float64
    assert measured(str(files["one"]), layer=None).layer == measured(net, layer=None, input_size=SIZE).layer == "down"
    # The norm at its end takes no layer's output but a sum, so that its own is the deepest map.
    assert (
        measured(str(files["attending"]), layer=None, dtype="float32").layer
        == measured(attending, layer=None, input_size=SIZE).layer
        == "output"
    )


@pytest.mark.slow
def test_everything_else_works_as_with_any_module(net: SmallNet, files: dict[str, Path]) -> None:
    spec = str(files["one"])
    names = [row.name for row in erfscope.layers(spec, unsafe_load=True).rows]
    assert [name for name in names if name in ("stem", "body", "down")] == ["stem", "body", "down"]
    assert erfscope.theoretical(spec, layer="down", unsafe_load=True) == erfscope.theoretical(
        net, layer="down", input_size=SIZE
    )
    ours, theirs = (measured(model, wrt="stem", **more) for model, more in ((spec, {}), (net, {"input_size": SIZE})))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    report = erfscope.sweep(spec, insert="gcn@body", layer="down", samples=2, device="cpu", unsafe_load=True)
    assert [result.status for result in report] == ["ok", "ok"]


@pytest.mark.slow
def test_a_program_says_where_its_weights_are_from(files: dict[str, Path]) -> None:
    import hashlib

    weights = measured(str(files["one"])).weights
    assert (weights.source, weights.origin) == ("exported", str(files["one"]))
    assert weights.sha256 == hashlib.sha256(files["one"].read_bytes()).hexdigest()


@pytest.mark.slow
def test_an_input_size_is_the_examples_or_within_what_was_left_open(net: SmallNet, files: dict[str, Path]) -> None:
    with pytest.raises(
        ErfscopeError,
        match=r"was exported for 3 input channels at 32x40, not 3 at 48x48; export it again with dynamic_shapes",
    ):
        measured(str(files["many"]), input_size=48)
    ours, theirs = (measured(model, input_size=48) for model in (str(files["any size"]), net))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    with pytest.raises(ErfscopeError, match="was exported for 3 input channels at 32x40, not 1 at 32x40"):
        measured(str(files["one"]), in_chans=1)
    with pytest.raises(ErfscopeError, match=r"takes no options \(depth\)"):
        measured(str(files["one"]), model_kwargs={"depth": 3})


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "text"),
    [
        (Two, lambda: (torch.zeros(1, 3), torch.zeros(1, 3)), "none of the example inputs .* is a floating"),
        (nn.Identity, lambda: (torch.zeros(1, 3),), "none of the example inputs .* is a floating"),
        (
            lambda: SmallNet().train(),
            lambda: (batch(2),),
            r"was exported in training mode; call model.eval\(\) first and export it again",
        ),
    ],
)
def test_a_program_that_cannot_be_measured_says_why(
    tmp_path: Path, make: Callable[[], nn.Module], inputs: Any, text: str
) -> None:
    file = export(make(), tmp_path / "net.pt2", *inputs())
    with pytest.raises(ErfscopeError, match=text) as caught:
        erfscope.theoretical(str(file), unsafe_load=True)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_program_is_one_line(tmp_path: Path, files: dict[str, Path]) -> None:
    contents = {"empty": b"", "text": b"hello", "cut": files["one"].read_bytes()[:-300]}
    saved = io.BytesIO()
    torch.save(SmallNet().state_dict(), saved)
    for name, content in {**contents, "weights": saved.getvalue()}.items():
        (tmp_path / f"{name}.pt2").write_bytes(content)
        with pytest.raises(ErfscopeError, match=r"write it with .*torch.export.save\(program, FILE\)") as caught:
            erfscope.theoretical(str(tmp_path / f"{name}.pt2"), unsafe_load=True)
        assert "\n" not in str(caught.value)
    with pytest.raises(ErfscopeError, match="there is no exported program"):
        erfscope.analyze(str(tmp_path / "nothing.pt2"))


# --- what a file may not bring --------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_is_read_only_where_it_is_trusted(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "load", lambda *_: pytest.fail("torch was given the file"))
        with pytest.raises(
            ErfscopeError, match=r"may run code when torch reads it; if you trust the file, add --unsafe-load"
        ):
            erfscope.analyze(str(files["one"]))
    result = measured(str(files["one"]))
    assert result.weights.unsafe_load
    assert "unsafe_load" in [finding.code for finding in result.findings]
