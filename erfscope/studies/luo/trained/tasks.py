"""Training data of the two nets: rendered shapes, or the papers' own data sets from the user's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from erfscope.errors import ErfscopeError
from erfscope.studies.luo.trained import rendered
from erfscope.studies.study import StudyOptions

#: (how many, source of randomness) -> images (B, 3, H, W), about -2 to 2, and the classes of each, or of each pixel (B,
#: H, W).
Draw = Callable[[int, np.random.Generator], tuple[Tensor, Tensor]]
#: A pixel of no class.
VOID = -100
CIFAR = "cifar-10-batches-bin"
CAMVID = ("train", "trainannot", "test", "testannot")
#: Classes of CamVid as SegNet groups them; the next number is void.
CAMVID_CLASSES = 11


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
    folder = None if asked.data is None else _found(asked.data)[0]
    if folder is None:
        draw = _rendered(rendered.single, side)
        return Task(data="rendered shapes", classes=len(rendered.SHAPES), side=side, train=draw, test=draw, shown=draw)
    train = _cifar(sorted(folder.glob("data_batch_*.bin")), folder)
    test = _cifar(sorted(folder.glob("test_batch.bin")), folder)
    return Task(data="CIFAR-10", classes=10, side=32, train=train, test=test, shown=test)


def segmentation(asked: StudyOptions, side: int) -> Task:
    """CamVid where ``asked.data`` has it, else rendered scenes of several shapes.

    Args:
        asked: Says where data are.
        side: Of the images; those of CamVid are cut out at random places.

    Raises:
        ErfscopeError: the folder has neither data set, or a file is broken.
    """
    folder = None if asked.data is None else _found(asked.data)[1]
    if folder is None:
        draw, wide = (_rendered(partial(rendered.scenes, reach=side), length) for length in (side, 2 * side))
        return Task(
            data="rendered scenes", classes=len(rendered.SHAPES) + 1, side=side, train=draw, test=draw, shown=wide
        )
    train, test, wide = _camvid(folder, "train", side), _camvid(folder, "test", side), _camvid(folder, "test", 2 * side)
    return Task(data="CamVid", classes=CAMVID_CLASSES, side=side, train=train, test=test, shown=wide)


def _rendered(drawn: Callable[[int, int, np.random.Generator], tuple[Tensor, Tensor]], side: int) -> Draw:
    return lambda count, generator: drawn(count, side, generator)


def _found(data: Path) -> tuple[Path | None, Path | None]:
    """The folders of CIFAR-10 and CamVid in a folder, or that folder itself."""
    cifar = next((path for path in (data, data / CIFAR) if any(path.glob("data_batch_*.bin"))), None)
    camvid = next((path for path in (data, data / "CamVid") if all((path / name).is_dir() for name in CAMVID)), None)
    if cifar is None and camvid is None:
        raise ErfscopeError(
            f"{data} has neither CIFAR-10 ({CIFAR}/data_batch_1.bin, the binary version) nor CamVid"
            f" (CamVid/{', '.join(CAMVID)}, as SegNet ships it); leave --data out to use rendered shapes"
        )
    return cifar, camvid


def _cifar(files: Sequence[Path], folder: Path) -> Draw:
    """Records of one label and 3 x 32 x 32 pixels, read once."""
    if not files:
        raise ErfscopeError(f"{folder} lacks data_batch_1.bin or test_batch.bin of the binary version of CIFAR-10")
    raw = [np.fromfile(file, dtype=np.uint8) for file in files]
    for file, values in zip(files, raw, strict=True):
        if len(values) == 0 or len(values) % 3073:
            raise ErfscopeError(
                f"{file} has {len(values)} bytes, which is no number of records of 3073 bytes each; fetch it again"
            )
    records = np.concatenate(raw).reshape(-1, 3073)

    def draw(count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = records[generator.integers(len(records), size=count)]
        return _scaled(chosen[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(chosen[:, 0].astype(np.int64))

    return draw


def _camvid(folder: Path, part: str, side: int) -> Draw:
    """Cuts of images and of their labels, which are files of the same name."""
    files = sorted((folder / part).glob("*.png"))
    if not files:
        raise ErfscopeError(f"{folder / part} has no .png files")

    def cut(file: Path, generator: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        try:
            picture = np.asarray(Image.open(file).convert("RGB"))
            label = np.asarray(Image.open(folder / f"{part}annot" / file.name)).astype(np.int64)
        except OSError as error:
            raise ErfscopeError(f"cannot read {file.name} and its labels in {folder}: {error}") from error
        if label.shape != picture.shape[:2] or min(label.shape) < side:
            raise ErfscopeError(
                f"{file} is {picture.shape[:2]}, its labels {label.shape}; they must be alike, and {side} px at least"
            )
        top, left = (generator.integers(length - side + 1) for length in label.shape)
        place = slice(top, top + side), slice(left, left + side)
        return picture[place], np.where(label[place] < CAMVID_CLASSES, label[place], VOID)

    def draw(count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        cuts = [cut(files[index], generator) for index in generator.integers(len(files), size=count)]
        pictures = np.stack([picture for picture, _ in cuts]).transpose(0, 3, 1, 2)
        return _scaled(pictures), torch.from_numpy(np.stack([label for _, label in cuts]))

    return draw


def _scaled(pixels: NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(pixels.astype(np.float32)) / 255 - 0.5) * 4
