"""How an image is cut into tiles: the plan for all image sizes that a model treats alike, and the windows of one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, Self

from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.input_size import Size, input_size
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import size_text

Slices = tuple[slice, ...]


class Window(NamedTuple):
    """One tile: what is cropped from the image, which part of the crop's output is right, and where that belongs."""

    crop: Slices
    valid: Slices
    target: Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class TileAxis:
    """The plan along one axis."""

    #: Input cells that the output of a tile needs beyond the tile, before and after it: for tiles that begin at
    #: multiples of the alignment, and for tiles that begin at any unit.
    halo: tuple[int, int]
    halo_any_phase: tuple[int, int]
    #: Tiles and crops begin at multiples of so many input cells.
    alignment: int
    #: Input cells from one unit of the output to the next: below 1 where the output is larger than the input.
    stride: Fraction
    #: The input cell at which the tile of unit 0 begins: positive where the model crops borders.
    offset: int
    #: An input side and the units that the model makes of it; it makes as many more of every further alignment.
    size: int
    units: int
    #: How much further units at the image's border see into it, where the model mirrors it there.
    border_reflection: tuple[int, int] = (0, 0)
    #: Units of a tile.
    tile_units: int

    @property
    def units_per_alignment(self) -> int:
        """Units of the output in one step of the alignment."""
        return int(self.alignment / self.stride)

    @property
    def step_units(self) -> int:
        """Units from one tile to the next."""
        return self.tile_units // self.units_per_alignment * self.units_per_alignment

    @property
    def lost(self) -> Fraction:
        """How much smaller the output is than the input, in input cells; below 0 where it is larger."""
        return self.size - self.units * self.stride

    @property
    def crop(self) -> int:
        """Side of what is cropped for each tile, at the image's border too: it begins in the phase of the image and
        ends in it, and the model makes all units of the tile of it.
        """
        shift = (self.offset - self.halo[0]) % self.alignment
        tile = max(math.ceil(self.tile_units * self.stride), *self.border_reflection)
        side = shift + sum(self.halo) + tile
        side += (self.size - side) % self.alignment
        before = (self.halo[0] - self.offset + shift) // self.alignment * self.units_per_alignment
        while self.units_of(side) < before + self.tile_units:
            side += self.alignment
        return side

    def with_tile(self, tile: int) -> TileAxis:
        """The plan for tiles of another side, rounded up to a step of the alignment at least, and to an end in the same
        phase, in which the output of a model without padding ends.
        """
        units = max(math.ceil(tile / self.stride), self.units_per_alignment)
        return replace(self, tile_units=units + (self.tile_units - units) % self.units_per_alignment)

    def start_of(self, unit: int) -> int:
        """The cell at which the tile of a unit begins, if it begins as near to it as a tile can."""
        period = self.units_per_alignment
        return math.floor(unit // period * period * self.stride) + self.offset

    @property
    def middle_unit(self) -> int:
        """The first unit of the total stride in the middle of the input."""
        period = self.units_per_alignment
        return (self.units - period) // 2 // period * period

    def shortened(self, halo: Sequence[int]) -> tuple[int, int]:
        """A halo (before, after) that is no longer than the exact one, and no shorter than what convolutions without
        padding cut off."""
        before, after = min(halo[0], self.halo[0]), min(halo[1], self.halo[1])
        return max(before, self.offset, 0), max(after, math.floor(self.lost) - self.offset, 0)

    def margin(self, halo: tuple[int, int]) -> int:
        """What a halo (before, after) leaves, on the side where that is more, beyond the cells that the model crops
        itself."""
        return max(halo[0] - self.offset, halo[1] + self.offset - math.floor(self.lost), 0)

    def units_of(self, size: int) -> int:
        """Units that the model makes of an input side."""
        return self.units + (size - self.size) // self.alignment * self.units_per_alignment

    def windows(self, size: int) -> list[tuple[slice, slice, slice]]:
        """Crop, valid part and target of each tile along this axis."""
        count = self.units_of(size)
        if size <= self.crop:
            return [(slice(0, size), slice(0, count), slice(0, count))]
        further = max(0, math.ceil((count - self.tile_units) / self.step_units))
        starts = [number * self.step_units for number in range(1 + further)]
        return [self._window(size, start, min(start + self.tile_units, count)) for start in starts]

    def _window(self, size: int, start: int, stop: int) -> tuple[slice, slice, slice]:
        first = self.start_of(start) - self.halo[0]
        # At the image's border the model's own padding stands for the halo.
        first = max(0, min(first // self.alignment * self.alignment, size - self.crop))
        shift = first // self.alignment * self.units_per_alignment
        return slice(first, first + self.crop), slice(start - shift, stop - shift), slice(start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The numbers of a plan (:class:`erfscope.TilePlan`): halos, tiles and windows, in cells of the input."""

    #: Whether tiles give the output of the whole image.
    possible: bool
    #: Why they do not, each with the operation, its module and what can be done. The halo is then exact for all other
    #: operations.
    blockers: tuple[str, ...]
    #: Empty where what units see is not known, or differs from place to place.
    axes: tuple[TileAxis, ...]
    #: The model, the layer, and where the output is among what the model returns.
    model: str
    layer: str
    path: tuple[int | str, ...] = ()
    #: Which of several inputs is cut.
    wrt: str = IMAGE
    #: What the axes of the input are; None where they are as those of any input of so many axes.
    space: Axes | None = None
    #: Memory of the forward pass of one tile without the weights, in bytes; None where the tile was not recorded.
    memory: int | None = None

    @property
    def input_axes(self) -> Axes:
        """What the axes of the input are, and how far apart its cells lie."""
        return self.space or Axes.of_rank(len(self.axes) or 2)

    @property
    def halo(self) -> tuple[tuple[int, int], ...]:
        """Input that a tile needs beyond its own, before and after it, for tiles that begin at multiples of the
        alignment."""
        return tuple(axis.halo for axis in self.axes)

    @property
    def halo_any_phase(self) -> tuple[tuple[int, int], ...]:
        """Input that a tile needs beyond its own, before and after it, where tiles begin at any unit of the output."""
        return tuple(axis.halo_any_phase for axis in self.axes)

    @property
    def alignment(self) -> tuple[int, ...]:
        """The total stride: tiles and crops begin at its multiples."""
        return tuple(axis.alignment for axis in self.axes)

    @property
    def remainder(self) -> tuple[int, ...]:
        """What sides of images leave when they are divided by the alignment."""
        return tuple(axis.size % axis.alignment for axis in self.axes)

    @property
    def scale(self) -> tuple[float, ...]:
        """Units of the output for each cell of the input: above 1 for super-resolution, below 1 behind strides."""
        return tuple(float(1 / axis.stride) for axis in self.axes)

    @property
    def offset(self) -> tuple[int, ...]:
        """The input cell where the output begins."""
        return tuple(axis.offset for axis in self.axes)

    @property
    def lost(self) -> tuple[int, ...]:
        """How much smaller the output is than the input, in input cells; below 0 where it is larger."""
        return tuple(math.floor(axis.lost) for axis in self.axes)

    @property
    def tile(self) -> tuple[int, ...]:
        """Sides of the part of the output that a tile gives at most."""
        return tuple(math.ceil(axis.tile_units * axis.stride) for axis in self.axes)

    @property
    def step(self) -> tuple[int, ...]:
        """From one tile to the next."""
        return tuple(int(axis.step_units * axis.stride) for axis in self.axes)

    @property
    def crop(self) -> tuple[int, ...]:
        """Sides of what is cropped for each tile."""
        return tuple(axis.crop for axis in self.axes)

    @property
    def wasted(self) -> float:
        """Share of the computing that goes into halos, of tiles that touch no border."""
        return 1 - math.prod(self.step) / math.prod(self.crop)

    def require_possible(self) -> None:
        """Refuse tiles that differ from the whole image.

        Raises:
            ErfscopeError: with the first reason.
        """
        if not self.possible:
            raise ErfscopeError(f"{self.model} cannot be run on tiles: {self.blockers[0]}")

    def with_tile(self, tile: Size) -> Self:
        """The plan with tiles of another size; their memory is scaled by the cells of the crops.

        Raises:
            ErfscopeError: a size with another number of axes.
        """
        sides = self.sides(tile)
        other = replace(self, axes=tuple(axis.with_tile(side) for axis, side in zip(self.axes, sides, strict=True)))
        return replace(other, memory=self.memory_of(other.crop))

    def memory_of(self, crop: Sequence[int]) -> int | None:
        """Memory of the forward pass of a crop of another size in bytes, by its cells; None where it is not known."""
        return None if self.memory is None else round(self.memory * math.prod(crop) / math.prod(self.crop))

    def sides(self, size: Size) -> tuple[int, ...]:
        """A size for each axis, from one number, text such as ``"48x64"`` or numbers.

        Raises:
            ErfscopeError: it has another number of axes.
        """
        return sides_along(size, len(self.axes))

    def output_size(self, image_size: Size) -> tuple[int, ...]:
        """Spatial size of the output for an image.

        Raises:
            ErfscopeError: as :meth:`windows`.
        """
        return tuple(axis.units_of(side) for axis, side in zip(self.axes, self._sides_like(image_size), strict=True))

    def windows(self, image_size: Size) -> list[Window]:
        """The tiles of an image, row by row.

        Raises:
            ErfscopeError: no tiles are possible, or the model treats images of this size differently.
        """
        self.require_possible()
        sides = self._sides_like(image_size)
        along = [axis.windows(side) for axis, side in zip(self.axes, sides, strict=True)]
        return [Window(*zip(*parts, strict=True)) for parts in itertools.product(*along)]

    def _sides_like(self, image_size: Size) -> tuple[int, ...]:
        sides = self.sides(image_size)
        left = tuple(side % axis.alignment for side, axis in zip(sides, self.axes, strict=True))
        if left != self.remainder:
            found = size_text(sides)
            raise ErfscopeError(
                f"this plan of {self.model} holds for sides that leave {self.remainder} when divided by"
                f" {self.alignment}, and {found} leave {left}; plan with"
                f" image_size={sides} (--image-size {found}), or pad"
            )
        return sides


def sides_along(size: Size, axes: int) -> tuple[int, ...]:
    """A size for each axis.

    Raises:
        ErfscopeError: it has another number of axes.
    """
    sides = input_size(size) or ()
    sides = sides * axes if len(sides) == 1 else sides
    if len(sides) != axes:
        raise ErfscopeError(f"{size!r} has {len(sides)} axes, and the model has {axes}")
    return tuple(sides)
