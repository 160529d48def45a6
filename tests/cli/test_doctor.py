"""``erfscope doctor``: what it finds in a broken installation, and the fixes that it names."""

from __future__ import annotations

import warnings
from importlib import metadata
from pathlib import Path

import pytest
import timm
import torch
from releases import needs_folders

from erfscope.cli import doctor as doctor_module

WITHOUT_HUB = "erfscope works, without: hub"
IN_PLACE = "everything erfscope needs is in place"


@pytest.fixture
def doctored(monkeypatch, command):
    """Run the doctor (exit code, the words it prints) on a sound installation with so many models in the hub's cache,
    except for some versions and one module that raises."""
    known = {each.name.lower(): each.version for each in metadata.distributions()}
    known |= {"erfscope": "1.0.0", **dict.fromkeys(doctor_module.OPENCV), "opencv-python": "4.11.0.86"}

    def run(*arguments, versions=(), broken=(), models: int = 1) -> tuple[object, str]:
        def load(name: str) -> object:
            if name in dict(broken):
                raise dict(broken)[name]
            return object()

        monkeypatch.setattr(doctor_module, "_version", {**known, **dict(versions)}.get)
        monkeypatch.setattr(doctor_module, "_models_in_cache", lambda: models)
        monkeypatch.setattr(doctor_module.importlib, "import_module", load)
        code, out, err = command("doctor", *arguments)
        assert err == ""
        return code, out if arguments else " ".join(out.split())

    return run


@pytest.mark.parametrize(
    ("model", "fetched", "folder"),
    [
        (
            "test_resnet",
            "timm.create_model('test_resnet', pretrained=True)",
            "hub/models--timm--test_resnet.r160_in1k",
        ),
        ("hf-hub:owner/name@v1", "hf download owner/name --revision v1", "hub/models--owner--name"),
        (
            "torchvision:squeezenet1_1",
            "get_model('squeezenet1_1', weights='DEFAULT')",
            "torch/checkpoints/squeezenet1_1-b8a52dc0.pth",
        ),
    ],
)
def test_the_doctor_says_how_weights_of_a_model_are_brought_here(
    command, monkeypatch, tmp_path, model, fetched, folder
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr("erfscope.adapters.weights.weights.unreachable_reason", lambda host: "asked nobody")
    code, out, err = command("doctor", "--fix-hint", model)
    assert (code, err) == (2, "")
    line = out.splitlines()[-1]
    assert line.startswith(f"fix: weights of {model}: cannot be had: asked nobody; ")
    folder, _, name = folder.rpartition("/")
    copied = f"copy {name} from its cache into {tmp_path / folder}, "
    for words in (fetched, copied, "--checkpoint FILE", "local-dir:PATH"):
        assert words in line


@needs_folders
def test_the_doctor_has_nothing_to_fix_where_weights_are_the_models_own(command, tmp_path):
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path / "saved", safe_serialization=True)
    _, out, _ = command("doctor", "--fix-hint", f"local-dir:{tmp_path / 'saved'}")
    assert not [line for line in out.splitlines() if line.startswith("fix: weights")]
    code, out, _ = command("doctor", "--fix-hint", "test_mambaout")
    assert (code, "no pretrained weights exist for test_mambaout; use --checkpoint FILE" in out) == (2, True)


def test_the_doctor_finds_nothing_wrong_with_a_sound_installation(doctored):
    code, words = doctored()
    assert (code, IN_PLACE in words, "!!" in words) == (0, True, False)
    folder = Path(doctor_module.__file__).resolve().parents[1]
    assert f"ok erfscope 1.0.0, runs from {folder} " in words
    assert "ok hub offline by HF_HUB_OFFLINE, and the cache has 1 model " in words
    assert "ok TF32" in words
    assert any(f"ok {device}" in words for device in ("GPU", "cuda:0", "mps"))


@pytest.mark.parametrize("replies", [True, False])
def test_the_doctor_asks_the_hub_where_it_is_not_offline(doctored, monkeypatch, replies):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("erfscope.adapters.weights.weights._replies", lambda host, is_hub: replies)
    monkeypatch.setattr("erfscope.adapters.weights.weights._SILENT", {})
    code, words = doctored()
    assert code == 0
    assert f"{'ok' if replies else '--'} hub http://hub.invalid is {'reachable' if replies else 'unreachable'}" in words
    assert (IN_PLACE in words) is replies
    assert ("connect to it, or set HF_HUB_OFFLINE=1" in words) is not replies
    assert words.endswith(WITHOUT_HUB) is not replies


def test_the_doctor_calls_all_in_place_only_where_pretrained_weights_are(doctored):
    code, words = doctored(models=0)
    assert (code, words.endswith(WITHOUT_HUB), "in place" in words) == (0, True, False)
    empty = "-- hub offline by HF_HUB_OFFLINE, and the cache is empty: no pretrained weights → unset HF_HUB_OFFLINE"
    assert empty in words
    code, out = doctored("--fix-hint", models=0)
    assert (code, out.startswith("fix: hub: offline by HF_HUB_OFFLINE")) == (0, True)


def test_the_doctor_computes_on_each_gpu(doctored, monkeypatch):
    said = {"is_available": True, "device_count": 1, "get_device_name": "H1", "get_device_capability": (9, 0)}
    for name, value in said.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, value=value: value)
    compute = torch.ones
    monkeypatch.setattr("torch.ones", lambda *size, device: compute(*size))
    code, words = doctored()
    assert (code, "ok cuda:0 H1 " in words) == (0, True)
    assert "TF32 off while erfscope measures; --tf32 allows it" in words

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image\nis there")

    monkeypatch.setattr(torch, "ones", fail)
    code, words = doctored()
    assert (code, "!! cuda:0 H1, fails: CUDA error: no kernel image → install a build" in words) == (2, True)


def test_the_doctor_says_why_pytorch_cannot_use_a_gpu(doctored, monkeypatch):
    def without_driver() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", without_driver)
    code, words = doctored()
    assert (code, "1 problem found" in words) == (2, True)
    assert "can use: CUDA initialization: the driver is too old → install a driver" in words


NMS = RuntimeError("operator torchvision::nms does not exist")
#: Versions or modules that are wrong, what is found, and its fix.
BROKEN = [
    ({"opencv-python-headless": "2.0"}, "exactly one must be installed", "pip uninstall opencv-python-headless"),
    ({"opencv-python": None}, "none: exactly one must be installed", "pip install opencv-python"),
    ({"captum": None}, "captum not installed", "pip install 'captum>=0.7'"),
    ({"numpy": "1.20"}, "1.20, not numpy>=1.26", "pip install 'numpy>=1.26'"),
    ({"msgspec": None}, "msgspec not installed", "pip install 'msgspec>=0.18.5'"),
    ({"erfscope": None}, "not installed, runs from", "pip install . in its checkout"),
    ({"timm": NMS}, "torchvision::nms", "torch torchvision"),
    ({"huggingface_hub": ImportError("no httpx")}, "no httpx", "--force-reinstall huggingface-hub"),
    ({"timm": RuntimeError("")}, "fails: RuntimeError", "torch torchvision"),
    ({"cv2": ImportError("libGL.so.1: cannot open")}, "libGL.so.1", "opencv-python-headless"),
]


@pytest.mark.parametrize(("fault", "found", "fix"), BROKEN)
def test_the_doctor_finds_a_broken_installation_and_names_the_fix(doctored, fault, found, fix):
    (value,) = fault.values()
    code, words = doctored(**{"broken" if isinstance(value, Exception) else "versions": fault})
    assert (code, "1 problem found" in words) == (2, True)
    assert found in words
    assert fix in words


def test_the_doctor_names_each_fix_in_a_line_of_its_own(doctored):
    code, out = doctored("--fix-hint", versions={"captum": None, "opencv-python": None})
    assert code == 2
    assert all(line.startswith("fix: ") for line in out.splitlines())
    fixes = [line.rpartition("; ")[2] for line in out.splitlines()]
    assert fixes == ["pip install 'captum>=0.7'", "pip install opencv-python"]
