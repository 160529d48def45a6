"""Claims about backbones of transformers: their stages, their images, their weights, and what a repository may not
bring."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_line import one_line
from oracle import sound_norms
from safetensors.torch import load_file
from trap import Trap

import erfscope
from erfscope.adapters.sources.sources import build
from erfscope.core.answer.convention import random_signs

pytestmark = pytest.mark.usefixtures("memory_unplanned")

transformers = pytest.importorskip("transformers")

SIDE = 56
#: Tiny ones of four families; the last two have tokens.
FAMILIES: dict[str, dict[str, Any]] = {
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 12, 16], "depths": [1, 1, 1], "layer_type": "basic"},
    "ConvNext": {"hidden_sizes": [8, 8, 12, 12], "depths": [1, 1, 1, 1]},
    "Swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": SIDE, "window_size": 7},
    "Dinov2": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
    },
}


def tiny(family: str) -> Any:
    """A backbone with numbers of its own, the same ones every time."""
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return transformers.AutoBackbone.from_config(config)


def save(family: str, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny(family).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("backbones")
    return {family: save(family, top / family) for family in FAMILIES}


def spec(folder: Path) -> str:
    return f"transformers:{folder}"


def fails(text: str, words: str = "", **options: Any) -> str:
    """The one line with which a spec is refused."""
    return one_line(lambda: build(text, **options), words)


def gradient(module: Any, x: torch.Tensor, stage: str, signs: torch.Tensor, unit: tuple[int, int]) -> torch.Tensor:
    """Gradient of a signed sum of channels at a unit, by nothing but transformers and autograd."""
    x = x.clone().requires_grad_(True)
    with sound_norms():
        found = module(x).feature_maps[module.out_features.index(stage)]
    return torch.autograd.grad((found[0, :, *unit] * signs).sum(), x)[0]


class Pass(torch.nn.Identity):
    """Stands for a norm, or for one norm per stage."""

    def __getitem__(self, _stage: str) -> Pass:
        return self


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_stages_are_the_backbones_feature_maps_and_the_map_is_autograds(folders, family):
    x = torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    adapter = erfscope.adapters.load(spec(folders[family]), weights="pretrained", input_size=(SIDE, SIDE))
    table = erfscope.layers(adapter)
    maps = adapter.module.eval()(x.float()).feature_maps
    stages = [row for row in table.rows if row.stage]
    assert [row.name for row in stages] == list(adapter.module.stage_names)
    assert [tuple(row.shape) for row in stages] == [tuple(found.shape[1:]) for found in maps]
    assert table.default_layer == adapter.module.stage_names[-1]
    result = erfscope.analyze(adapter, images=x, dtype="float64", draws=1, device="cpu", measures="r50")
    assert result.ok
    assert (result.weights.source, result.weights.origin) == ("pretrained", str(folders[family]))
    theirs = tiny(family)
    for norms in ("hidden_states_norms", "layernorm"):
        # A feature map is taken before the norm after it.
        if hasattr(theirs, norms):
            setattr(theirs, norms, Pass())
    signs = random_signs(result.unit.map_shape[0], seed=0, image=0, draw=0).double()
    g = gradient(theirs.double().eval(), x, result.layer, signs, result.unit.index).square().sum(1)[0].sqrt().numpy()
    assert np.abs(result.map.values - g / g.sum()).max() <= 1e-9 * result.map.values.max()


@pytest.mark.slow
def test_random_weights_read_the_configuration_only_and_are_switched_on(tmp_path):
    folder = save("ConvNext", tmp_path / "net")
    (folder / "model.safetensors").unlink()
    source = build(spec(folder), weights="random", seed=3)
    assert (source.weights.source, source.weights.reactivated) == ("random", 4)
    again = build(spec(folder), weights="random", seed=3)
    assert again.weights.sha256 == source.weights.sha256 != build(spec(folder), weights="random", seed=4).weights.sha256
    fails(spec(folder), "cannot be had", weights="pretrained")
    assert build(spec(folder), weights="auto").weights.fallback


PROCESSORS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "size": {"shortest_edge": 64},
            "crop_size": {"height": 56, "width": 56},
            "do_center_crop": True,
            "resample": 3,
        },
        {"size": (56, 56), "crop_pct": 56 / 64, "crop_mode": "center", "interpolation": "bicubic"},
    ),
    (
        {"size": {"height": 56, "width": 42}, "resample": 2},
        {"size": (56, 42), "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear"},
    ),
    (
        {"size": {"shortest_edge": 56}, "crop_pct": 0.875},
        {"size": (56, 56), "crop_pct": 0.875, "crop_mode": "center"},
    ),
    ({"size": 56, "do_center_crop": False}, {"size": (56, 56), "crop_pct": 1.0}),
    (
        {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]},
        {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
    ),
    ({"do_normalize": False}, {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}),
    (
        {"do_rescale": False, "image_mean": [51.0] * 3, "image_std": [25.5] * 3},
        {"mean": (0.2,) * 3, "std": (0.1,) * 3},
    ),
    (
        {"rescale_factor": 2 / 255, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
        {"mean": (0.5,) * 3, "std": (0.5,) * 3},
    ),
]


def test_the_image_processor_says_how_a_picture_goes_in(folders):
    file = folders["ResNet"] / "preprocessor_config.json"
    try:
        for given, expected in PROCESSORS:
            file.write_text(json.dumps(given))
            config = build(spec(folders["ResNet"]), weights="random").config
            for name, value in expected.items():
                assert getattr(config, name) == pytest.approx(value), (given, name)
            assert ("mean" in config.assumed) == ("mean" not in expected)
    finally:
        file.unlink()
    # Without one the size is the configuration's, and the numbers are assumed.
    assert build(spec(folders["Swin"]), weights="random").config.size == (SIDE, SIDE)
    config = build(spec(folders["ResNet"]), weights="random").config
    assert (config.size, config.assumed) == ((224, 224), ("size", "mean", "std"))


def test_options_replace_fields_of_the_configuration(folders):
    source = build(spec(folders["ResNet"]), weights="random", model_kwargs={"hidden_act": "gelu"}, in_chans=5)
    assert (source.module.config.hidden_act, source.config.channels) == ("gelu", 5)
    fails(spec(folders["ResNet"]), "has no 'depth'", weights="random", model_kwargs={"depth": 3})


@pytest.mark.parametrize(
    ("family", "name", "value", "text"),
    [
        ("Dinov2", "num_hidden_layers", 10**6, "asks for num_hidden_layers=1000000"),
        ("Dinov2", "num_hidden_layers", 10**12, "asks for num_hidden_layers="),
        ("Swin", "depths", [1, 10**9], "asks for depths=1000000000"),
        ("ResNet", "hidden_sizes", [8, 12, 10**9], ""),
        ("Dinov2", "image_size", 10**9, ""),
    ],
)
def test_a_configuration_that_claims_a_huge_model_is_one_line(tmp_path, folders, family, name, value, text):
    config = json.loads((folders[family] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    fails(f"transformers:{tmp_path}", text, weights="random")


def test_a_place_without_a_backbone_says_what_there_is(tmp_path):
    fails(f"transformers:{tmp_path}", r"config\.json")
    for text, words in (
        ('{"model_type": "bert"}', "transformers has no backbone for"),
        ('{"model_type": "timm_backbone", "backbone": "resnet18"}', "write resnet18 instead"),
        ("{", "cannot be had"),
    ):
        (tmp_path / "config.json").write_text(text)
        fails(f"transformers:{tmp_path}", words)
    fails("transformers:nobody/nothing", "is not in the local cache, and HF_HUB_OFFLINE is set")
    fails("transformers:nobody/nothing", "never touches the network", weights="random")


def test_without_the_extra_one_line_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert fails("transformers:owner/name").endswith("pip install '.[hf]' in a checkout of erfscope")


# --- what a repository may not bring --------------------------------------------------------------


def test_code_in_a_repository_is_never_looked_at(tmp_path):
    folder, names = save("ResNet", tmp_path / "net"), ("Config", "Backbone", "ImageProcessor")
    config = json.loads((folder / "config.json").read_text()) | {
        "auto_map": {f"Auto{name}": f"evil.{name}" for name in names}
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"auto_map": config["auto_map"]}))
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'sprung')!r})")
    assert build(spec(folder), weights="pretrained").weights.source == "pretrained"
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil"}))
    fails(spec(folder), "transformers has no backbone for")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("policy", ["auto", "pretrained"])
def test_pickled_weights_take_unsafe_load(tmp_path, policy):
    folder, trap = save("ResNet", tmp_path / "net"), tmp_path / "sprung"
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**state, "trap": Trap(trap)}, folder / "pytorch_model.bin")
    fails(spec(folder), "may run code", weights=policy)
    assert not trap.exists()
    torch.save(state, folder / "pytorch_model.bin")
    source = build(spec(folder), weights=policy, unsafe_load=True)
    assert source.weights.source == "pretrained"
    name = "embedder.embedder.convolution.weight"
    assert torch.equal(source.module.state_dict()[name], state[name])
