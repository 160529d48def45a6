"""Outputs of runs on image files, which are filled part by part and can be gone on with."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erfscope.core.answer.storage.writing import (
    behind_link,
    check_file,
    refuse_input,
    refuse_inside,
    take_place,
    writing_to,
)
from erfscope.core.images.files import is_zarr, suffixes_like
from erfscope.core.images.raster import Placement, Raster, open_raster
from erfscope.core.values.errors import ErfscopeError


class RasterOutput:
    """The output of a run on an image in a file: another file of its kind, .npy, TIFF or zarr.

    It stands in its place from the first part on, with the count of its parts beside it (``mark``) until it is
    whole. An output that was there before stays until then: the new one is called ``TARGET.part`` meanwhile.

    Args:
        source: The image.
        target: The output; what a link leads to is replaced, and the link stays.

    Raises:
        ErfscopeError: a link that leads to nothing.
    """

    def __init__(self, source: str | Path, target: str | Path) -> None:
        self.source, self._name, self._target = source, target, behind_link(target)
        #: The file that counts what is written, for the caller to write and to remove: only a run that was stopped
        #: leaves it.
        self.mark = Path(f"{self._target}.tiles.json")
        self._part = Path(f"{self._target}.part")
        self._kind = suffixes_like(source)
        #: Inside :meth:`image`: the open image, and where the output is until it is whole.
        self._raster: Raster
        self._filled: Path

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuse an output that cannot be begun, or gone on with; called before anything is computed.

        Args:
            resume: Whether a run that was stopped is to go on.
            force: Whether an output of that name is to be replaced.

        Raises:
            ErfscopeError: there is an output, a run that was stopped or none, or something else is in the way.
        """
        is_begun = self.mark.exists()
        if is_begun and not (resume or force):
            raise ErfscopeError(f"a run for {self._name} was stopped; add --resume to go on, or --force to start again")
        is_folder = self._part.is_dir() and self._kind != (".zarr",)
        if self.mark.is_dir() or is_folder or (self._part.exists() and not (is_begun or force)):
            name = self._part if self._part.exists() else self.mark
            raise ErfscopeError(f"{name} is in the way; move it, or choose another name")
        if resume and not is_begun and self._target.exists() and not force:
            raise ErfscopeError(
                f"{self._name} exists, and no run for it was stopped: it is whole, or another's; add --force"
            )
        if not (is_zarr(self._target) and self._kind == (".zarr",)):
            check_file(self._name, self._kind, force=force or is_begun)
        elif not (force or is_begun):
            raise ErfscopeError(f"{self._name} exists already; choose another name or add --force")

    @contextlib.contextmanager
    def image(self, rank: int) -> Iterator[Any]:
        """The image (C, *space) or, of .npy alone, (B, C, *space), read where it is sliced; at the end of the block, if
        nothing went wrong, the output takes its place.

        Args:
            rank: The number of its spatial axes.

        Raises:
            ErfscopeError: an image that cannot be read or has other axes; or an output that is the image, lies in it,
                or is a folder of something else.
        """
        for file in (self._target, self.mark, self._part):
            refuse_input(file, [self.source])
            refuse_inside(file, [self.source])
            if file.is_dir() and not (is_zarr(file) and self._kind == (".zarr",)):
                raise ErfscopeError(f"{file} is a folder that no such run wrote; choose another name for the output")
        has_other = self._target.exists() and not self.mark.exists()
        self._filled = self._part if self._part.exists() or has_other else self._target
        with open_raster(self.source, rank) as self._raster:
            yield self._raster.x
        if self._filled != self._target:
            with writing_to(self._target):
                take_place(self._filled, self._target)

    def begun(self) -> Any:
        """The output of a run that was stopped, inside :meth:`image`; None where there is none.

        Raises:
            ErfscopeError: it is damaged.
        """
        return self._raster.reopened(self._filled) if self.mark.exists() else None

    def new(self, shape: tuple[int, ...], dtype: Any, placement: Placement) -> Any:
        """A new output, inside :meth:`image`, filled where it is sliced, with what the image's file says of places.

        Args:
            shape: (C, *space) or, of .npy alone, (B, C, *space).
            dtype: Of its values.
            placement: Along each axis how many cells of the image there are from one cell of the output to the next,
                and the cell of the image at which the first begins.

        Raises:
            ErfscopeError: it cannot be written.
        """
        filled = self._filled
        with writing_to(self._target):
            self.mark.unlink(missing_ok=True)
            filled.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._raster.new(filled, shape, dtype, placement)
            except BaseException:
                shutil.rmtree(filled) if filled.is_dir() else filled.unlink(missing_ok=True)
                raise
