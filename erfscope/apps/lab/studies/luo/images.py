"""Training data of the two nets: shapes drawn from formulas, or the papers' own data sets from the user's folder.

A shape has one colour, which is independent of its kind, so that the class of a pixel inside it depends on its outline
alone, which may be far away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from erfscope.apps.lab.studies.study import StudyOptions
from erfscope.core import ErfscopeError, FloatArray

#: (how many, source of randomness) -> images (B, 3, H, W), about -2 to 2, and the classes of each, or of each pixel (B,
#: H, W).
Draw = Callable[[int, np.random.Generator], tuple[Tensor, Tensor]]
Inside = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]
#: Whether a point (u, v) lies inside the shape, which fits into the unit circle.
SHAPES: Mapping[str, Inside] = {
    "disk": lambda u, v: u**2 + v**2 < 0.8,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.7) < 0.2,
    "triangle": lambda u, v: (v > -0.5) & (np.sqrt(3) * abs(u) + v < 1),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 0.95),
}
#: Class of a pixel of the background.
BACKGROUND = len(SHAPES)
#: Standard deviation of the noise on every pixel and channel, of values in [0, 1].
NOISE = 0.08
#: A pixel of no class.
VOID = -100
CIFAR = "cifar-10-batches-bin"
CAMVID = ("train", "trainannot", "test", "testannot")
#: Classes of CamVid as SegNet groups them; the next number is void.
CAMVID_CLASSES = 11


def single(side: int, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One shape per image, somewhere near its middle, at any angle.

    Args:
        side: Of an image, in pixels.
        count: How many images.
        generator: Source of randomness.

    Returns:
        Images (count, 3, side, side), about -2 to 2, and the number of each one's shape (count,).
    """
    kinds = generator.integers(len(SHAPES), size=count)
    pictures = _ground(count, side, generator)
    for picture, kind in zip(pictures, kinds, strict=True):
        radius = generator.uniform(0.25, 0.45) * side
        inside = _mask(kind, side, generator.uniform(0.4, 0.6, 2) * side, radius, generator)
        picture[inside] = generator.uniform(0.5, 1, 3)
    return _with_noise(pictures, generator), torch.from_numpy(kinds)


def scenes(reach: float, side: int, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Several shapes per image, of which later ones hide earlier ones: five where the reach is the side.

    Args:
        reach: What a shape's radius is measured by: 0.12 to 0.25 of it, in pixels.
        side: Of an image, in pixels.
        count: How many images.
        generator: Source of randomness.

    Returns:
        Images (count, 3, side, side), about -2 to 2, and the kind of every pixel (count, side, side): a shape's number,
        or BACKGROUND.
    """
    pictures, labels = _ground(count, side, generator), np.full((count, side, side), BACKGROUND)
    for picture, label in zip(pictures, labels, strict=True):
        for kind in generator.integers(len(SHAPES), size=round(5 * (side / reach) ** 2)):
            center, radius = generator.uniform(0, 1, 2) * side, generator.uniform(0.12, 0.25) * reach
            inside = _mask(kind, side, center, radius, generator)
            picture[inside] = generator.uniform(0.5, 1, 3)
            label[inside] = kind
    return _with_noise(pictures, generator), torch.from_numpy(labels)


def _ground(count: int, side: int, generator: np.random.Generator) -> FloatArray:
    """Images of one dark colour each, (count, side, side, 3)."""
    return np.broadcast_to(generator.uniform(0, 0.4, (count, 1, 1, 3)), (count, side, side, 3)).copy()


def _mask(kind: int, side: int, center: FloatArray, radius: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    angle = generator.uniform(0, 2 * np.pi)
    rows, cols = np.mgrid[:side, :side]
    y, x = (rows - center[0]) / radius, (cols - center[1]) / radius
    return list(SHAPES.values())[kind](np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y)


def _with_noise(pictures: FloatArray, generator: np.random.Generator) -> Tensor:
    noisy = pictures + NOISE * generator.standard_normal(pictures.shape)
    return torch.from_numpy(((noisy - 0.5) * 4).transpose(0, 3, 1, 2).astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Images with labels."""

    data: str
    classes: int
    side: int
    train: Draw
    test: Draw
    #: For ERFs: larger where a net takes any size, so that its ERF is not cut off.
    shown: Draw


def classification(asked: StudyOptions, side: int) -> Task:
    """CIFAR-10 where ``asked.data`` has it, else one rendered shape per image.

    Args:
        asked: Says where data are.
        side: Of rendered images.

    Raises:
        ErfscopeError: the folder has neither data set, or a file is broken.
    """
    folder = _folders(asked.data)[0]
    if folder is None:
        draw = partial(single, side)
        return Task(data="rendered shapes", classes=len(SHAPES), side=side, train=draw, test=draw, shown=draw)
    train, test = (_cifar(folder, name) for name in ("data_batch_*.bin", "test_batch.bin"))
    return Task(data="CIFAR-10", classes=10, side=32, train=train, test=test, shown=test)


def segmentation(asked: StudyOptions, side: int, *, reach: float | None = None) -> Task:
    """CamVid where ``asked.data`` has it, else rendered scenes of several shapes.

    Args:
        asked: Says where data are.
        side: Of the images; those of CamVid are cut out at random places.
        reach: What the radius of rendered shapes is measured by, in pixels; the side if None.

    Raises:
        ErfscopeError: the folder has neither data set, or a file is broken.
    """
    folder = _folders(asked.data)[1]
    if folder is None:
        draw, wide = (partial(scenes, side if reach is None else reach, length) for length in (side, 2 * side))
        return Task(data="rendered scenes", classes=len(SHAPES) + 1, side=side, train=draw, test=draw, shown=wide)
    train, test, wide = (
        partial(_camvid, folder, part, length) for part, length in (("train", side), ("test", side), ("test", 2 * side))
    )
    return Task(data="CamVid", classes=CAMVID_CLASSES, side=side, train=train, test=test, shown=wide)


def _folders(data: Path | None) -> tuple[Path | None, Path | None]:
    """The folders of CIFAR-10 and CamVid in a folder, or that folder itself; None where data are rendered."""
    if data is None:
        return None, None
    cifar = next((path for path in (data, data / CIFAR) if any(path.glob("data_batch_*.bin"))), None)
    camvid = next((path for path in (data, data / "CamVid") if all((path / name).is_dir() for name in CAMVID)), None)
    if cifar is None and camvid is None:
        raise ErfscopeError(
            f"{data} has neither CIFAR-10 ({CIFAR}/data_batch_1.bin, the binary version) nor CamVid"
            f" (CamVid/{', '.join(CAMVID)}, as SegNet ships it); leave --data out to use rendered shapes"
        )
    return cifar, camvid


def _cifar(folder: Path, name: str) -> Draw:
    """Records of one label and 3 x 32 x 32 pixels, read once."""
    raw = {file: np.fromfile(file, dtype=np.uint8) for file in sorted(folder.glob(name))}
    for file, values in raw.items():
        if len(values) == 0 or len(values) % 3073:
            raise ErfscopeError(
                f"{file} has {len(values)} bytes, which is no number of records of 3073 bytes each; fetch it again"
            )
    if not raw:
        raise ErfscopeError(f"{folder} lacks {name} of the binary version of CIFAR-10")
    records = np.concatenate(list(raw.values())).reshape(-1, 3073)

    def draw(count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = records[generator.integers(len(records), size=count)]
        return _scaled(chosen[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(chosen[:, 0].astype(np.int64))

    return draw


def _camvid(folder: Path, part: str, side: int, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Cuts of images and of their labels, which are files of the same name."""
    files = sorted((folder / part).glob("*.png"))
    if not files:
        raise ErfscopeError(f"{folder / part} has no .png files")
    pictures, labels = [], []
    for index in generator.integers(len(files), size=count):
        file, annotated = files[index], folder / f"{part}annot" / files[index].name
        try:
            picture, label = np.asarray(Image.open(file).convert("RGB")), np.asarray(Image.open(annotated))
        except OSError as error:
            raise ErfscopeError(f"cannot read {file.name} and its labels in {folder}: {error}") from error
        if label.shape != picture.shape[:2] or min(label.shape) < side:
            raise ErfscopeError(
                f"{file} is {picture.shape[:2]}, its labels {label.shape}; they must be alike, and {side} px at least"
            )
        top, left = (int(generator.integers(length - side + 1)) for length in label.shape)
        pictures.append(picture[top : top + side, left : left + side])
        labels.append(label[top : top + side, left : left + side].astype(np.int64))
    known = np.stack(labels)
    pixels: Any = np.stack(pictures).transpose(0, 3, 1, 2)
    return _scaled(pixels), torch.from_numpy(np.where(known < CAMVID_CLASSES, known, VOID))


def _scaled(pixels: NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(pixels.astype(np.float32)) / 255 - 0.5) * 4
