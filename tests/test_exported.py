"""Exported programs are measured as the models they were, and bring no code with them."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
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
from erfscope.adapters.exported import open_program
from erfscope.adapters.program_file import harmless_copy
from erfscope.errors import ErfscopeError

SIZE = (32, 40)


def export(module: nn.Module, path: Path, *inputs: Tensor, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own internals
        torch.export.save(torch.export.export(module, inputs, **options), path)
    return path


def batch(count: int, **options: Any) -> Tensor:
    return torch.zeros(count, 3, *SIZE, **options)


class Attending(nn.Module):
    """A model that writes its batch of one and its dtype into the program, with views and a conversion, and ends in a LayerNorm."""

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
    asked = {"layer": "down", "samples": 3, "device": "cpu", "mean": 0.5, "std": 0.25, "dtype": "float64", **options}
    return erfscope.analyze(model, **asked)


@pytest.mark.parametrize("kind", ["one", "many", "any size"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_the_map_of_a_program_is_that_of_its_model(net: SmallNet, files: dict[str, Path], kind: str, dtype: str, tolerance: float) -> None:
    ours = measured(str(files[kind]), dtype=dtype)
    theirs = measured(net, dtype=dtype, input_size=SIZE)
    assert ours.ok
    assert np.abs(ours.map.values - theirs.map.values).max() <= tolerance * theirs.map.values.max()
    assert (ours.trf, ours.unit, ours.input.size) == (theirs.trf, theirs.unit, SIZE)


def test_what_the_example_wrote_into_a_program_is_taken_out_of_it(attending: Attending, files: dict[str, Path]) -> None:
    # A conversion to the example's dtype would leave float32 in a measurement in float64; the model itself cannot even be run so.
    attending.convert = torch.float64
    for layer in ("patches", "norm"):
        ours = measured(str(files["attending"]), layer=layer)
        theirs = measured(attending, layer=layer, input_size=SIZE, batch_size=1)
        assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12 * theirs.map.values.max()
        assert ours.trf == theirs.trf


def test_the_default_layer_of_a_program_is_that_of_its_model(net: SmallNet, attending: Attending, files: dict[str, Path]) -> None:
    attending.convert = torch.float64
    assert measured(str(files["one"]), layer=None).layer == measured(net, layer=None, input_size=SIZE).layer == "down"
    # The norm at its end takes no layer's output but a sum, so that its own is the deepest map.
    assert measured(str(files["attending"]), layer=None).layer == measured(attending, layer=None, input_size=SIZE).layer == "output"


def test_everything_else_works_as_with_any_module(net: SmallNet, files: dict[str, Path]) -> None:
    spec = str(files["one"])
    names = [row.name for row in erfscope.layers(spec).rows]
    assert [name for name in names if name in ("stem", "body", "down")] == ["stem", "body", "down"]
    assert erfscope.theoretical(spec, layer="down") == erfscope.theoretical(net, layer="down", input_size=SIZE)
    ours, theirs = (measured(model, wrt="stem", **more) for model, more in ((spec, {}), (net, {"input_size": SIZE})))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    report = erfscope.sweep(spec, insert="gcn@body", layer="down", samples=2, device="cpu")
    assert [result.status for result in report] == ["ok", "ok"]


def test_a_program_says_where_its_weights_are_from(files: dict[str, Path]) -> None:
    import hashlib

    weights = measured(str(files["one"])).weights
    assert (weights.source, weights.origin) == ("exported", str(files["one"]))
    assert weights.sha256 == hashlib.sha256(files["one"].read_bytes()).hexdigest()


def test_a_program_for_one_picture_gets_one_at_a_time_and_other_methods_are_told(files: dict[str, Path]) -> None:
    assert open_program(files["one"]).at_once == 1
    assert open_program(files["many"]).at_once is None
    result = measured(str(files["one"]), method="smoothgrad")
    assert result.status == "error"
    assert "was exported for at most 1 picture at a time, not 4" in result.error


def test_an_input_size_is_the_examples_or_within_what_was_left_open(net: SmallNet, files: dict[str, Path]) -> None:
    with pytest.raises(ErfscopeError, match=r"was exported for inputs of 32 by 40, not 48x48; export it again with dynamic_shapes"):
        measured(str(files["many"]), input_size=48)
    ours, theirs = (measured(model, input_size=48) for model in (str(files["any size"]), net))
    assert np.abs(ours.map.values - theirs.map.values).max() <= 1e-12
    with pytest.raises(ErfscopeError, match="was exported for 3 input channels, not 1"):
        measured(str(files["one"]), in_chans=1)
    with pytest.raises(ErfscopeError, match=r"takes no options \(depth\)"):
        measured(str(files["one"]), model_kwargs={"depth": 3})


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Integers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d((x * 9).to(torch.int32).float(), torch.ones(1, 3, 3, 3))


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Integers()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize(
    ("make", "inputs", "text"),
    [
        (Two, lambda: (batch(1), batch(1)), r"takes 2 inputs, x, y; export it again as a model of one"),
        (nn.Flatten, lambda: (batch(1, dtype=torch.uint8),), r"takes an input of uint8, which has no gradients"),
        (
            lambda: SmallNet().train(),
            lambda: (batch(2),),
            r"was exported in training mode .*; call model.eval\(\) first and export it again",
        ),
        (lambda: SmallNet().eval(), lambda: (batch(4),), r"takes batches of 4 only; export it again with a batch of 1"),
        (Parts, lambda: (batch(1),), r"has no gradients: it computes in integers"),
        (nn.Identity, lambda: (torch.zeros(1, 3),), r"takes an input of 2 axes"),
    ],
)
def test_a_program_that_cannot_be_measured_says_why(tmp_path: Path, make: Callable[[], nn.Module], inputs: Any, text: str) -> None:
    file = export(make(), tmp_path / "net.pt2", *inputs())
    with pytest.raises(ErfscopeError, match=text) as caught:
        open_program(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_program_is_one_line(tmp_path: Path, files: dict[str, Path]) -> None:
    contents = {"empty": b"", "text": b"hello", "cut": files["one"].read_bytes()[:-300]}
    saved = io.BytesIO()
    torch.save(SmallNet().state_dict(), saved)
    for name, content in {**contents, "weights": saved.getvalue()}.items():
        (tmp_path / f"{name}.pt2").write_bytes(content)
        with pytest.raises(ErfscopeError, match=r"write it with torch.export.save\(program, FILE\)") as caught:
            open_program(tmp_path / f"{name}.pt2")
        assert "\n" not in str(caught.value)
    with pytest.raises(ErfscopeError, match="there is no exported program"):
        erfscope.analyze(str(tmp_path / "nothing.pt2"))


# --- what a file may not bring ------------------------------------------------------------------------------------------------------------


class Trap:
    """Makes a folder when it is unpickled with its code."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        import os

        return os.mkdir, (str(self.target),)


def altered(source: Path, target: Path, changes: dict[str, Callable[[bytes], bytes]]) -> Path:
    """A copy of a program with other records; names are without the archive's own folder."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        folder = old.namelist()[0].partition("/")[0]
        names = [name.partition("/")[2] for name in old.namelist()]
        for name in dict.fromkeys([*names, *changes]):
            content = old.read(f"{folder}/{name}") if name in names else b""
            new.writestr(f"{folder}/{name}", changes[name](content) if name in changes else content)
    return target


def in_model(change: Callable[[dict[str, Any]], object]) -> dict[str, Callable[[bytes], bytes]]:
    def edit(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return {"models/model.json": edit}


def in_config(kind: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Callable[[bytes], bytes]]:
    return {f"data/{kind}/model_{kind}_config.json": in_model(change)["models/model.json"]}


def first(document: dict[str, Any]) -> dict[str, Any]:
    return document["graph_module"]["graph"]["nodes"][0]


def stem(document: dict[str, Any]) -> dict[str, Any]:
    return document["config"]["stem.weight"]


def expression(text: str) -> Callable[[dict[str, Any]], object]:
    size = {"as_expr": {"expr_str": text, "hint": {"as_int": 2}}}
    return lambda document: document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(0, size)


def layout(kind: str | None, context: str) -> Callable[[dict[str, Any]], object]:
    spec = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])
    return lambda document: document["graph_module"]["module_call_graph"][0]["signature"].update(out_spec=spec)


#: How a pickled constant stands in a program.
PICKLED = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}

HOSTILE: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "operator": (lambda trap: in_model(lambda d: first(d).update(target="torch.os.mkdir")), "is no operation of torch's own"),
    "library": (lambda trap: in_model(lambda d: first(d).update(target="torch.ops.load_library")), "is no operation"),
    "file": (lambda trap: in_model(lambda d: first(d).update(target="torch.ops.aten.from_file.default")), "is no operation"),
    "script": (lambda trap: in_model(lambda d: first(d).update(target="torch.ops.aten.save.default")), "is no operation"),
    "class": (lambda trap: in_model(lambda d: first(d).update(target="torch.ops.aten.__class__.mro")), "is no operation"),
    "getter": (lambda trap: in_model(lambda d: first(d).update(target="_operator.attrgetter")), "is no operation"),
    "size": (lambda trap: in_model(expression(f"__import__('os').mkdir('{trap}')")), "is no arithmetic"),
    "method": (lambda trap: in_model(expression("Symbol('x').__class__")), "is no arithmetic"),
    "nested": (lambda trap: in_model(expression(f"Add('__import__(\"os\").mkdir(\"{trap}\")')")), "is no arithmetic"),
    "tower": (lambda trap: in_model(expression("Pow(Integer(9), Pow(Integer(9), Integer(8)))")), "is no arithmetic"),
    "node": (lambda trap: in_model(lambda d: first(d).update(name=f"x\nimport os; os.mkdir('{trap}')")), "is no name"),
    "argument": (lambda trap: in_model(lambda d: first(d)["inputs"][0].update(name="x=(), **y")), "is no name"),
    "module": (lambda trap: in_model(lambda d: first(d)["metadata"].update(nn_module_stack='a,a");import os,T')), "is no name"),
    "parameter": (
        lambda trap: in_model(lambda d: d["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name='a"b')),
        "is no name",
    ),
    "enum": (lambda trap: in_model(layout("builtins.dict", '{"__enum__": true, "fqn": "antigravity:x", "name": "x"}')), "are held by"),
    "factory": (lambda trap: in_model(layout("collections.defaultdict", "{}")), "are held by"),
    "object": (
        lambda trap: in_model(lambda d: d["graph_module"]["graph"].update(custom_obj_values={"o": {"name": "o", "class_fqn": "a.B"}})),
        "brings objects of its own",
    ),
    "pickled weight": (
        lambda trap: in_config("weights", lambda d: stem(d).update(use_pickle=True)) | {"data/weights/weight_0": sprung(trap)},
        "is a pickled object",
    ),
    "pickled constant": (
        lambda trap: in_config("constants", lambda d: d["config"].update(c=PICKLED))
        | {"data/constants/opaque_obj_0": lambda _: pickle.dumps(Trap(trap))},
        "is a pickled object",
    ),
    "path": (lambda trap: in_config("weights", lambda d: stem(d).update(path_name="../../models/model.json")), "is a pickled"),
    "empty weight": (
        lambda trap: in_config("weights", lambda d: stem(d)["tensor_meta"].update(sizes=[{"as_int": 10**12}]))
        | {"data/weights/weight_0": lambda _: b""},
        "claims 1000000000000 numbers and has none",
    ),
    "two programs": (lambda trap: {"models/other.json": lambda _: b"{}"}, "it holds 2 programs"),
}  # fmt: skip


def sprung(trap: Path) -> Callable[[bytes], bytes]:
    def write(_content: bytes) -> bytes:
        saved = io.BytesIO()
        torch.save(Trap(trap), saved)
        return saved.getvalue()

    return write


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_could_run_code_is_refused_before_torch_reads_it(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    make, text = HOSTILE[kind]
    file = altered(files["one"], tmp_path / "evil.pt2", make(tmp_path / "sprung"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "load", lambda *_: pytest.fail("torch was given the file"))
        with pytest.raises(ErfscopeError, match=text) as caught:
            open_program(file)
    assert "\n" not in str(caught.value)
    assert "--unsafe-load" in str(caught.value)
    assert not (tmp_path / "sprung").exists()


def test_the_trap_works_where_torch_reads_the_file_itself(tmp_path: Path, files: dict[str, Path]) -> None:
    file = altered(files["one"], tmp_path / "evil.pt2", HOSTILE["pickled constant"][0](tmp_path / "sprung"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.load(file)
    assert (tmp_path / "sprung").is_dir(), "or the tests above show nothing"


def test_what_torch_evaluates_besides_is_left_out_of_the_copy(tmp_path: Path, files: dict[str, Path]) -> None:
    trap = tmp_path / "sprung"
    changes = in_model(lambda d: (d.update(guards_code=["1/0"]), first(d)["metadata"].update(stack_trace="x\nimport os", custom="y")))
    changes |= {
        "data/sample_inputs/model.pt": sprung(trap),
        "extra/notes.txt": lambda _: b"z",
        "data/aotinductor/net/lib.so": lambda _: b"\x7fELF",
    }
    file = altered(files["one"], tmp_path / "net.pt2", changes)
    with zipfile.ZipFile(harmless_copy(file)) as copy:
        names = [name.partition("/")[2] for name in copy.namelist()]
        document = json.loads(copy.read(next(name for name in copy.namelist() if name.endswith("models/model.json"))))
        assert not any(name.startswith(("extra/", "data/aotinductor/")) for name in names)
        assert copy.read(next(name for name in copy.namelist() if name.endswith("sample_inputs/model.pt"))) == b""
    assert document["guards_code"] == []
    assert set(first(document)["metadata"]) == {"nn_module_stack"}
    assert measured(str(file)).ok
    assert not trap.exists()


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(tmp_path: Path, files: dict[str, Path]) -> None:
    with zipfile.ZipFile(files["one"]) as old, zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr(f"{old.namelist()[0].partition('/')[0]}/extra/zeros", bytes(1 << 24))
    with pytest.raises(ErfscopeError, match="it unpacks to more than its own size"):
        open_program(tmp_path / "bomb.pt2")


def test_with_unsafe_load_torch_gets_the_file_as_it_is_and_the_report_says_so(tmp_path: Path, files: dict[str, Path]) -> None:
    trap = tmp_path / "sprung"
    file = altered(files["one"], tmp_path / "net.pt2", {"data/sample_inputs/model.pt": sprung(trap)})
    assert measured(str(file)).weights.unsafe_load is False
    assert not trap.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ErfscopeError, match="cannot read"):  # an example input that is no tuple
            measured(str(file), unsafe_load=True)
    assert trap.is_dir()
    result = measured(str(files["one"]), unsafe_load=True)
    assert result.weights.unsafe_load
    assert "unsafe_load" in [finding.code for finding in result.warnings]
