"""Claims about turning a spec string into a model."""

from __future__ import annotations

import importlib.abc
import itertools
import json
import os
import pickle
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from one_line import one_line
from PIL import Image
from releases import needs_folders, needs_meta_transformers
from torch import nn
from trap import Trap

from erfscope import ErfscopeError
from erfscope.adapters.libraries import import_library
from erfscope.adapters.sources.kinds import KINDS, kind_of
from erfscope.adapters.sources.sources import build, split_label
from erfscope.adapters.weights.weights import check_room, sha256


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def fails(spec: str, words: str = "", **options: object) -> str:
    """The one line with which a spec is refused."""
    return one_line(lambda: build(spec, **({"weights": "random"} | options)), words)  # type: ignore[arg-type]


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label", "spec"),
    [
        ("resnet18", None, "resnet18"),
        ("Ours=resnet18.a1_in1k", "Ours", "resnet18.a1_in1k"),
        ("ResNet-18 v1.5 = torchvision:resnet18", "ResNet-18 v1.5", "torchvision:resnet18"),
        ("Ours=nets/gcn.py:make", "Ours", "nets/gcn.py:make"),
        ("Ours=runs/lr=3/net.py:make", "Ours", "runs/lr=3/net.py:make"),
        ("runs/lr=3/net.py:make", None, "runs/lr=3/net.py:make"),
        ("net.py:make=5", None, "net.py:make=5"),
        ("local-dir:/runs/lr=3", None, "local-dir:/runs/lr=3"),
        ("pkg.nets:make=2", None, "pkg.nets:make=2"),
        (r"C:\runs=1\net.py:make", None, r"C:\runs=1\net.py:make"),
        ("=resnet18", None, "=resnet18"),
    ],
)
def test_a_label_is_what_stands_before_the_first_equals_sign_unless_that_is_a_path(text, label, spec):
    assert split_label(text) == (label, spec)


def test_an_existing_file_with_an_equals_sign_is_no_label():
    write("lr=3/net.py", "")
    assert split_label("lr=3/net.py:make") == (None, "lr=3/net.py:make")
    assert split_label("lr=4/net.py:make") == ("lr", "4/net.py:make")
    assert build("Ours=test_resnet", weights="random").spec == "test_resnet"


# --- what is no model -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.module)
def test_the_page_on_models_shows_every_form_of_a_spec(kind):
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()
    forms = re.findall("`([^`]+)`", kind.specs)
    assert forms
    assert [form for form in forms if form.partition("NAME")[0] not in page] == []
    assert {kind_of(form) for form in forms} == {kind}


@needs_meta_transformers
def test_a_model_too_large_for_memory_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(timm.layers, "trunc_normal_", lambda *_, **__: pytest.fail("numbers were drawn"))
    # A table of positions for 62,500 x 62,500 tokens: 930 GiB.
    text = fails("test_vit", input_size=(1_000_000, 1_000_000))
    assert "is too large: its weights take" in text
    assert "use a smaller --input-size" in text
    assert "is too large: its weights take" in fails("torchvision:vit_b_16", input_size=(1_000_000, 1_000_000))


@needs_folders
def test_a_local_folder_brings_no_code(tmp_path):
    model = timm.create_model("test_resnet")
    timm.models.save_for_hf(model, "saved", safe_serialization=True)
    file = Path("saved/config.json")
    config = json.loads(file.read_text())
    code = {
        "auto_map": {"AutoModel": "evil.Net"},
        "custom_pipelines": {"x": {"impl": "evil.Net"}},
        "trust_remote_code": True,
    }
    file.write_text(
        json.dumps({**config, **code, "pretrained_cfg": {**config["pretrained_cfg"], "custom_load": "evil"}})
    )
    Path("saved/evil.py").write_text("import os; os.mkdir('sprung')")
    assert build("local-dir:saved", weights="pretrained").weights.source == "pretrained"
    file.write_text(json.dumps({**config, **code, "architecture": "evil.Net"}))
    fails("local-dir:saved", weights="pretrained")
    assert not Path("sprung").exists()


@needs_folders
def test_pickled_code_in_a_local_folder_is_never_executed(tmp_path):
    model = timm.create_model("test_resnet")
    timm.models.save_for_hf(model, "saved", safe_serialization=False)
    Path("saved/pytorch_model.bin").write_bytes(pickle.dumps({"state_dict": Trap(Path("sprung"))}))
    text = fails("local-dir:saved", weights="pretrained")
    assert "weights_only" in text or "cannot be had" in text
    assert not Path("sprung").exists()
    pickle.loads(Path("saved/pytorch_model.bin").read_bytes())
    assert Path("sprung").exists(), "the trap must work, or this test shows nothing"


def test_what_is_no_model_is_told_how_to_be_given():
    Image.new("RGB", (4, 4)).save("x y.png")
    Path("saved").mkdir()
    for name, text in (("saved/config.json", "{}"), ("net.py", ""), ("best.pth", ""), ("model.safetensors", "")):
        Path(name).write_text(text)
    for spec, text in {
        **{f"exported/net.{suffix}": "has no gradients" for suffix in ("onnx", "tflite", "engine", "h5", "mlmodel")},
        "net.pt2": "there is no exported program 'net.pt2'",
        "x y.png": "erfscope analyze MODEL --image 'x y.png'",
        "best.pth": "erfscope analyze MODEL --checkpoint 'best.pth'",
        "model.safetensors": "erfscope analyze MODEL --checkpoint 'model.safetensors'",
        "saved": "local-dir:saved",
        "net.py": "net.py:NAME",
        "": "no model was named",
        "resnet81": "did you mean 'resnet18'?",
        "test_resnet.r160_in1l": "did you mean 'r160_in1k'?",
        "torchvision:resnet81": "did you mean 'resnet18'?",
        "fcn_resnet50": "torchvision:fcn_resnet50",
        "owner/name": "hf-hub:owner/name",
        "torch.nn:Identit": "did you mean 'Identity'?",
        "no_such_package.nets:make": "no Python module 'no_such_package'",
        "nowhere/net.py:make": "there is no Python file 'nowhere/net.py'",
        "hf-hib:owner/name": "nothing begins with 'hf-hib' and a colon; a model is a timm name (resnet18, ",
    }.items():
        assert text in fails(spec)


@needs_folders
def test_a_folder_that_is_not_there_has_no_configuration():
    fails("local-dir:nowhere", r"config\.json")


def test_options_that_a_model_does_not_take_are_named():
    fails("test_resnet", "with foo=1: TypeError: ", model_kwargs={"foo": 1})
    fails("torchvision:resnet18", "takes 3 input channels, not 5", in_chans=5)
    fails("torchvision:vit_b_32", "takes square inputs only, not 64x32", input_size=(64, 32))


# --- timm and torchvision -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_of_a_fixed_size_is_built_for_the_size_asked_for_and_others_are_not_told():
    fixed = build("test_vit4", weights="random", input_size=(96, 128), model_kwargs={"dynamic_img_size": False})
    assert fixed.config.size == (96, 128)
    vit = build("vit_tiny_patch16_224", weights="random", input_size=(96, 128))
    assert (vit.config.size, vit.config.fixed) == ((96, 128), True)
    assert vit.module.get_parameter("pos_embed").shape[1] == 1 + 6 * 8
    free = build("test_resnet", weights="random", input_size=(96, 128))  # its constructor knows no img_size
    assert (free.config.size, free.config.fixed) == ((96, 128), False)


def test_a_size_that_does_not_fit_is_timms_own_complaint_on_one_line():
    text = fails("xcit_nano_12_p16_224", input_size=(100, 100))
    said = "AssertionError: `patch_size` should divide"
    assert text.startswith(f"timm could not build 'xcit_nano_12_p16_224' with img_size=(100, 100): {said}")


def test_other_channels_reach_the_model_and_the_configuration():
    source = build("test_resnet", weights="random", in_chans=5, mean=0.4, std=(0.1, 0.2, 0.3, 0.4, 0.5))
    assert next(iter(source.module.parameters())).shape[1] == 5
    assert (source.config.channels, source.config.mean, source.config.std[4]) == (5, (0.4,) * 5, 0.5)


@needs_folders
def test_a_local_folder_brings_its_own_weights_and_configuration(tmp_path):
    torch.manual_seed(5)
    model, config = timm.create_model("test_resnet", num_classes=7), {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}}
    timm.models.save_for_hf(model, tmp_path / "saved", model_config=config, safe_serialization=True)
    for policy in ("auto", "pretrained"):
        source = build(f"local-dir:{tmp_path / 'saved'}", weights=policy)
        assert (source.weights.source, source.weights.sha256) == ("pretrained", sha256(model))
        assert source.config.mean == (0.1, 0.2, 0.3)
    assert build(f"local-dir:{tmp_path / 'saved'}", weights="random").weights.source == "random"


@needs_folders
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"depth": 10**9}, "asks for depth=1000000000"),
        ({"depth": 10**30}, "asks for depth=1000"),
        ({"embed_dim": 3 * 10**6}, "is too large: its weights take"),
        ({"mlp_ratio": 1e7}, "is too large: its weights take"),
        ({"num_classes": 10**12}, "is too large: its weights take"),
        ({"img_size": 10**6}, "is too large: its weights take"),
        ({"in_chans": 10**40}, "could not build"),
    ],
)
def test_a_folder_that_claims_a_huge_model_is_refused_before_it_is_built(arguments, text):
    folder = Path("huge")
    folder.mkdir()
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "pretrained_cfg": {}}
    (folder / "config.json").write_text(json.dumps(config))
    for weights in ("random", "auto"):
        assert text in fails("local-dir:huge", weights=weights)


@pytest.mark.slow
def test_a_model_of_too_many_modules_is_refused_while_it_is_built():
    def make(_: bool) -> nn.Module:
        net = nn.Sequential()
        for number in itertools.count():
            net.add_module(str(number), nn.ReLU())
        return net

    one_line(lambda: check_room(make, "correct it"), "more than 30,000 modules; correct it")
    # The count ends with the check.
    nn.Sequential().add_module("part", nn.ReLU())


def test_a_release_that_reads_no_folders_says_so(monkeypatch):
    Path("saved").mkdir()
    monkeypatch.setattr(timm, "__version__", "1.0.19")
    assert "timm 1.0.19 reads no folders (local-dir:); install timm 1.0.26 or newer" in fails("local-dir:saved")


@pytest.mark.slow
def test_torchvision_models_are_built_with_their_own_preset():
    source = build("torchvision:swin_v2_t", weights="random-raw")
    assert (source.config.size, source.config.interpolation) == ((256, 256), "bicubic")
    video = build("torchvision:r3d_18", weights="random")
    assert video.config.size == (16, 112, 112)
    detector = build("torchvision:ssdlite320_mobilenet_v3_large", weights="random")
    assert (detector.config.mean, detector.config.assumed) == ((0.0, 0.0, 0.0), ("size",))
    vit = build("torchvision:vit_b_32", weights="random", input_size=(64, 64))
    assert vit.module.get_parameter("encoder.pos_embedding").shape[1] == 1 + 2 * 2


class BrokenTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "timm":
            raise RuntimeError("operator torchvision::nms does not exist")


def test_torch_and_torchvision_from_different_indexes_are_named_with_the_fix(monkeypatch):
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.setattr(sys, "meta_path", [BrokenTorchvision(), *sys.meta_path])
    words = r"torchvision::nms does not exist.*install both from one index: pip install"
    one_line(lambda: import_library("timm"), words)


# --- factories ------------------------------------------------------------------------------------

NET = """
import random, sys
import numpy
import torch
from torch import nn
from trap import Trap

first_on_path = sys.path[0]

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(2, width, 3)
        self.bn = nn.BatchNorm2d(width)
        nn.init.zeros_(self.bn.weight)
        self.drawn = random.random(), numpy.random.rand(), float(torch.rand(()))

def make(width=4):
    return Net(width)

ready = Net()
answer = 42

def broken():
    raise ValueError("no such thing\\nsecond line")

def leaves():
    raise SystemExit(3)

def gives_a_list():
    return [Net()]

class Box:
    @staticmethod
    def make():
        return Net(6)
"""


def write(path: str, text: str = NET) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.mark.parametrize(("where", "folder"), [("my_nets", "."), ("sub/dir/my_nets.py", "sub/dir")])
@pytest.mark.parametrize(("name", "width"), [("make", 4), ("Net", 4), ("ready", 4), ("Box.make", 6)])
def test_a_function_a_class_or_a_module_is_found_by_its_name(where, folder, name, width):
    write("my_nets.py" if "." not in where else where)
    path = list(sys.path)
    source = build(f"{where}:{name}")
    assert source.module.get_parameter("conv.weight").shape == (width, 2, 3, 3)
    assert sys.modules[type(source.module).__module__].first_on_path == str(Path(folder).resolve())
    assert sys.path == path
    if name == "ready":
        assert source.module is sys.modules[type(source.module).__module__].ready


def test_a_factorys_weights_are_its_own_closed_branches_included():
    write("my_nets.py")
    source = build("my_nets:make", model_kwargs={"width": 5}, weights="random", seed=3)
    weights = source.weights
    assert (weights.source, weights.seed, weights.reactivated, weights.fallback) == ("factory", 3, 0, False)
    assert weights.sha256 == sha256(source.module)
    assert torch.equal(source.module.get_parameter("bn.weight"), torch.zeros(5))
    assert source.notes == ()


def test_a_factory_runs_under_a_seed_and_leaves_no_trace_in_the_callers_generators():
    write("net.py")
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, again, other = (build("net.py:make", seed=seed).module for seed in (1, 1, 2))
    assert first.drawn == again.drawn
    assert not set(first.drawn) & set(other.drawn)
    assert sha256(first) == sha256(again) != sha256(other)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # noqa: NPY002
    # The input of a factory is as asked, or assumed and said.
    bare = build("net.py:make").config
    assert (bare.size, bare.channels, bare.assumed) == ((224, 224), 2, ("size", "mean", "std"))
    asked = build("net.py:make", input_size=(32, 48), mean=0.5, std=0.25).config
    assert (asked.size, asked.mean, asked.assumed) == ((32, 48), (0.5, 0.5), ())
    own = build("timm:create_model", model_kwargs={"model_name": "test_resnet"})
    assert (own.config.size, own.config.assumed) == ((160, 160), ())


def test_two_files_of_one_name_each_see_the_module_beside_them():
    for folder, width in (("a", 3), ("b", 7)):
        write(f"{folder}/layers.py", f"width = {width}")
        write(
            f"{folder}/model.py",
            "from torch import nn\nimport layers\ndef make():\n    return nn.Conv2d(3, layers.width, 1)\n",
        )
    widths = [build(f"{folder}/model.py:make").module.get_parameter("bias").shape[0] for folder in ("a", "b", "a")]
    assert widths == [3, 7, 3]
    assert "layers" not in sys.modules


def test_a_file_that_is_saved_twice_within_one_second_is_read_twice(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    channels = []
    for width in (3, 7):
        write("model.py", f"from torch import nn\ndef make():\n    return nn.Conv2d(3, {width}, 1)\n")
        os.utime("model.py", (1_700_000_000, 1_700_000_000))
        channels.append(build("model.py:make").module.get_parameter("bias").shape[0])
    assert channels == [3, 7]


def test_the_working_directory_comes_before_what_is_installed():
    assert "this" not in sys.modules  # of the standard library: it prints a poem
    write("this.py")
    assert build("this:make").module.get_parameter("conv.weight").shape[0] == 4


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("broken", {}, "net.py:broken failed: ValueError: no such thing"),
        ("leaves", {}, "net.py:leaves failed: its code called sys.exit(3)"),
        ("make", {"height": 2}, "net.py:make failed with height=2: TypeError"),
        ("gives_a_list", {}, "returned list; it must return an nn.Module"),
        ("answer", {}, "is of type int; it must be a function, a class or an nn.Module"),
        ("ready", {"width": 2}, "is a module, not a function: it takes no options (width)"),
        ("mak", {}, "unknown name 'mak' in net.py"),
    ],
)
def test_whatever_a_factory_does_wrong_is_one_line(name, options, text):
    write("net.py")
    path = list(sys.path)
    assert text in fails(f"net.py:{name}", model_kwargs=options)
    assert sys.path == path


@pytest.mark.parametrize("where", ["net", "net.py"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise KeyError('weights')", "KeyError: 'weights'"),
        ("import sys; sys.exit('usage: train')", "its code called sys.exit('usage: train')"),
        ("import no_such_thing_here", "ModuleNotFoundError: No module named 'no_such_thing_here'"),
        ("def make(:", "SyntaxError"),
    ],
)
def test_whatever_goes_wrong_while_importing_is_one_line_with_the_original_behind_it(where, text, said):
    write("net.py", text)
    with pytest.raises(ErfscopeError, match="importing net") as caught:
        build(f"{where}:make")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__name__ == ("ModelExitError" if "sys.exit" in said else said.partition(":")[0])
