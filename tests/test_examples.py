"""The examples run as they are, and what they say of their numbers holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from timm.data import ImageNetInfo, create_transform, resolve_model_data_config

EXAMPLES = Path(__file__).parent.parent / "examples"

# --- Weights of ImageNet ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lite():
    spec = importlib.util.spec_from_file_location("pretrained_efficientnet_lite", EXAMPLES / "pretrained_efficientnet_lite.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lite_report(lite):
    return lite.measure()


def test_weights_of_the_wheel_classify_its_photographs(lite):
    """Chance is one in a thousand for each."""
    from PIL import Image

    model, names = lite.trained(), ImageNetInfo()
    transform = create_transform(**resolve_model_data_config(model))
    expected = {"chelsea.png": "cat", "coffee.png": "espresso", "motorcycle_left.png": "moped", "rocket.jpg": "missile"}
    files = {path.name: path for path in lite.photographs()}
    for name, word in expected.items():
        with torch.no_grad():
            best = model(transform(Image.open(files[name]).convert("RGB"))[None]).argmax()
        assert word in names.index_to_description(int(best)).split(":")[0], name


def test_training_moves_the_sizes_between_those_of_two_initialisations(lite_report):
    """Farther than three standard errors of the paired differences."""
    assert [result.label for result in lite_report] == ["trained", "random, timm", "random, PyTorch"]
    assert {result.input.n_images for result in lite_report} == {8}
    _, wider, narrower = lite_report.differences(("r50", "far_mass"))
    for name in ("r50", "far_mass"):
        assert wider[name][0] > 3 * wider[name][1] > 0, name
        assert narrower[name][0] < -3 * narrower[name][1] < 0, name


def test_the_comparison_is_printed_and_drawn(lite, lite_report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lite, "measure", lambda seed: lite_report)
    monkeypatch.setattr(sys, "argv", ["pretrained_efficientnet_lite.py", "-o", str(tmp_path / "erf.png")])
    lite.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:] == [result.label for result in lite_report]
    assert sum(" minus trained: " in line for line in lines) == 4
    assert (tmp_path / "erf.png").stat().st_size > 10_000
