"""Other tools with the settings that erfscope writes for them, against the whole pass; tools that are not installed are
left out.

python benchmarks/tile_tools.py
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope.apps.tile.recipes import recipe


class UNet(nn.Module):
    """Two levels, with padding."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The map (B, 2, H, W)."""
        skip = self.first(x).relu()
        deep = self.second(nn.functional.max_pool2d(skip, 2)).relu()
        return self.last(torch.cat([skip, self.up(deep)], 1))


def volumes() -> nn.Module:
    """A net for volumes."""
    return nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 1, 5, padding=2))


def doubled() -> nn.Module:
    """Super-resolution."""
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.PixelShuffle(2), nn.Conv2d(2, 1, 3, padding=1))


def halved() -> nn.Module:
    """An output behind strides."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 5, padding=2))


def paste(text: str, names: dict[str, Any]) -> Any:
    """What the text leaves in ``output``."""
    exec(compile(text, "recipe", "exec"), names)
    return names["output"]


def monai(net: nn.Module, image: Tensor, text: str) -> Tensor:
    """The text as it is."""
    return paste(text, {"model": net, "image": image})


def torchio(net: nn.Module, image: Tensor, text: str) -> Tensor:
    """The text as it is, with a subject of one image."""
    tio = importlib.import_module("torchio")
    data = image[0] if image.ndim == 5 else image[0, ..., None]
    found = paste(text, {"model": net, "subject": tio.Subject(image=tio.ScalarImage(tensor=data))})
    return (found if image.ndim == 5 else found[..., 0])[None]


def careamics(net: nn.Module, image: Tensor, text: str) -> Tensor:
    """Its tiles and its stitching, without a trained CAREamist around the net."""
    tiled = importlib.import_module("careamics.dataset.patching.tiled_patching")
    found: dict[str, Any] = {}
    names = {
        "image": image,
        "careamist": type("Stand", (), {"predict": lambda _, x, **more: (found.update(more), 0)})(),
    }
    paste(text + "output = None", names)
    specs = tiled.TiledPatching([tuple(image.shape)], found["tile_size"], found["tile_overlap"]).tile_specs
    whole: Tensor | None = None
    for spec in specs:
        crop = tuple(slice(a, a + side) for a, side in zip(spec["coords"], spec["patch_size"], strict=True))
        valid = tuple(slice(a, a + side) for a, side in zip(spec["crop_coords"], spec["crop_size"], strict=True))
        target = tuple(slice(a, a + side) for a, side in zip(spec["stitch_coords"], spec["crop_size"], strict=True))
        part = net(image[(..., *crop)])
        whole = torch.zeros(1, part.shape[1], *image.shape[2:], dtype=part.dtype) if whole is None else whole
        whole[(..., *target)] = part[(..., *valid)]
    assert whole is not None
    return whole


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "U-Net": (UNet, (150, 162)),
    "volumes": (volumes, (37, 41, 50)),
    "twice": (doubled, (101, 90)),
    "half": (halved, (102, 90)),
}
RUNS = {"monai": monai, "torchio": torchio, "careamics": careamics}


@torch.no_grad()
def main() -> None:
    """Print the largest difference of each tool and net, relative to the largest output."""
    for tool, run in RUNS.items():
        try:
            importlib.import_module(tool)
        except ImportError as error:
            print(f"{tool}: left out ({error})")
            continue
        for name, (make, size) in NETS.items():
            torch.manual_seed(0)
            net = make().double().eval()
            image = torch.randn(1, 1, *size, dtype=torch.float64)
            plan = erfscope.tile(net, 16, in_chans=1, input_size=size, image_size=size)
            try:
                text = recipe(plan, tool)
            except erfscope.ErfscopeError as error:
                print(f"{tool}, {name}: {error}")
                continue
            whole = net(image)
            found = torch.as_tensor(np.asarray(run(net, image, text)))
            print(f"{tool}, {name}, halo {plan.halo}: {(found - whole).abs().max() / whole.abs().max():.1e}")


if __name__ == "__main__":
    main()
