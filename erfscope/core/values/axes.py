"""What the axes of a reference are, and how far apart its cells lie along them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.printable import brief

TIME, DEPTH, ROW, COL = "time", "depth", "row", "col"
#: Models that take frames or steps before the channels, (B, T, C, ...): the input's axes are (B, C, T, ...) all the
#: same.
TIME_FIRST = ("btc", "btchw")
#: What a user calls the axes of an input -> their names.
NAMES = {
    "t": (TIME,),
    "hw": (ROW, COL),
    "thw": (TIME, ROW, COL),
    "dhw": (DEPTH, ROW, COL),
    "btc": (TIME,),
    "btchw": (TIME, ROW, COL),
}
SEQUENCES = ("t", "btc")
#: What the cells of a reference are called, and the steps of a clip's time.
CELL = {(TIME,): "samples", (DEPTH, ROW, COL): "voxels"}
#: What one input is called; others are images.
INPUT = {(TIME,): "sequence", (TIME, ROW, COL): "clip", (DEPTH, ROW, COL): "volume"}
PX, CELLS, FRAMES, MS, TOKENS = "px", "cells", "frames", "ms", "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes of a reference, in the order of its dimensions."""

    #: "time", "depth", "row" or "col" each.
    names: tuple[str, ...]
    #: Distance between neighbouring cells along each, in its unit.
    spacing: tuple[float, ...]
    #: "px", "voxels", "samples", "frames", "cells", "ms" or a user's own.
    units: tuple[str, ...]
    #: What a cell is called.
    cell: str = PX

    @classmethod
    def named(cls, names: Sequence[str], cell: str | None = None) -> Axes:
        """Axes of these names, in cells."""
        cell = cell or CELL.get(tuple(names), PX)
        units = tuple(FRAMES if cell == PX and name == TIME else cell for name in names)
        return cls(names=tuple(names), spacing=(1.0,) * len(names), units=units, cell=cell)

    @classmethod
    @lru_cache
    def of_rank(cls, rank: int) -> Axes:
        """Those of an input of so many axes that nothing is known of: a sequence, an image or a clip."""
        return cls.named({1: NAMES["t"], 2: NAMES["hw"]}.get(rank, NAMES["thw"]))

    def inner(self, space: Sequence[float], size: Sequence[int]) -> Axes:
        """Those of a feature map in an input of this size: counted in its cells, which are tokens where there is
        one for each."""
        if self.cell == TOKENS and tuple(space) == tuple(size):
            return self
        names = self.names if len(space) == len(self.names) else Axes.of_rank(len(space)).names
        return Axes.named(names, CELLS)

    def stated(self, spacing: Sequence[float] | None, unit: str) -> Axes:
        """The same with the spacing that a file states, along axes that distances are taken over, if the user states
        none."""
        plain, kept = Axes.named(self.names), self.measured
        if spacing is None or len(spacing) != len(self.names) or self.only(kept) != plain.only(kept):
            return self
        each = [
            (spacing[axis], unit) if axis in kept else own
            for axis, own in enumerate(zip(self.spacing, self.units, strict=True))
        ]
        steps, units = zip(*each, strict=True)
        return Axes(names=self.names, spacing=steps, units=units, cell=self.cell)

    @property
    def text(self) -> str:
        """The axes with the sides of their cells: ``depth 2.5 mm, row 1 mm, col 1 mm``."""
        each = zip(self.names, self.spacing, self.units, strict=True)
        plain = Axes.named(self.names).units
        one = {(1.0, self.cell): self.one_cell}
        named = [
            name if unit in plain else f"{name} {brief(step)} {one.get((step, unit), unit)}"
            for name, step, unit in each
        ]
        return ", ".join(named)

    @property
    def recorded(self) -> dict[str, str]:
        """What results have to record of them: all, where they are not those of any input of so many axes."""
        return {} if self == Axes.of_rank(len(self.names)) else {"axes": self.text}

    @property
    def noun(self) -> str:
        """What one input with these axes is called: image, volume, clip or sequence."""
        return INPUT.get(self.names, "image")

    @property
    def one_cell(self) -> str:
        """What one cell is called: pixel, voxel, sample, or what the user calls it."""
        return "pixel" if self.cell == PX else self.cell.removesuffix("s")

    @property
    def has_frames(self) -> bool:
        """Whether the cells of the first axis are frames, those of the others pixels."""
        return self.cell == PX and self.noun == "clip"

    @property
    def cells(self) -> str:
        """What places and sizes in cells are in: ``voxels``, or ``frames, px`` of a clip."""
        return f"{FRAMES}, {self.cell}" if self.has_frames else self.cell

    @classmethod
    def of_recorded(cls, recorded: str, rank: int) -> Axes:
        """Axes of the names that results on an input of so many axes have :attr:`recorded`, in cells."""
        names = [part.split()[0] for part in recorded.split(", ") if part]
        return cls.named(names) if names else cls.of_rank(rank)

    @property
    def measured(self) -> tuple[int, ...]:
        """The axes that distances are taken over: all, but of a clip rows and columns alone."""
        return _measured(self.names)

    @property
    def is_in_plane(self) -> bool:
        """Whether distances leave out an axis."""
        return len(self.measured) < len(self.names)

    @property
    def unit(self) -> str:
        """The unit of distances."""
        return self.units[-1]

    @property
    def plane(self) -> Axes:
        """Those of a picture: the last two, or a line beside an axis of one cell."""
        names = (ROW, *self.names)[-2:] if len(self.names) == 1 else self.names[-2:]
        spacing, units = ((self.spacing * 2)[-2:], (self.units * 2)[-2:])
        return Axes(names=names, spacing=spacing, units=units, cell=self.cell)

    def only(self, kept: Sequence[int]) -> Axes:
        """Some of the axes."""
        names, units = (tuple(each[axis] for axis in kept) for each in (self.names, self.units))
        return Axes(names=names, spacing=tuple(self.spacing[axis] for axis in kept), units=units, cell=self.cell)

    def unit_of(self, unit: str, axis: str = "", rank: int | None = None) -> str:
        """The unit of a measure that is in ``unit`` ("px" and "px2" are cells of any reference), along one axis or over
        all that are measured; ``rank`` of these have more than one cell."""
        if axis:
            return self.units[self.names.index(axis)] if unit == PX and axis in self.names else unit
        if unit != "px2":
            return self.unit if unit == PX else unit
        rank = len(self.measured) if rank is None else rank
        # A number of voxels is no length.
        return self.unit if rank == 1 or self.unit == CELL[NAMES["dhw"]] else f"{self.unit}{rank}"


@lru_cache
def _measured(names: tuple[str, ...]) -> tuple[int, ...]:
    space = tuple(axis for axis, name in enumerate(names) if name != TIME)
    return space if len(space) > 1 else tuple(range(len(names)))


def unit_sign(unit: str) -> str:
    """A unit as people write it: ``mm³`` for ``mm3``."""
    if unit == "deg":
        return "°"
    found = re.fullmatch(r"(\D+)([23])", unit)
    return found[1] + "²³"[int(found[2]) - 2] if found else unit


def asked_axes(
    own: Axes,
    *,
    axes: str | None = None,
    spacing: float | Sequence[float] | None = None,
    unit_name: str | None = None,
    fps: float | None = None,
    sample_rate: float | None = None,
) -> Axes:
    """The axes of an input as a user describes them.

    Args:
        own: As they are assumed.
        axes: A key of :data:`NAMES`.
        spacing: Side of a cell along each axis that distances are taken over; one number for all of them.
        unit_name: What that is in; without a spacing what the cells are called.
        fps: Frames of a clip in a second.
        sample_rate: Samples of a sequence in a second.

    Raises:
        ErfscopeError: a description of another number of axes, or of axes that the input has not.
    """
    if axes is not None:
        names = NAMES[axes]
        if len(names) != len(own.names):
            fit = " or ".join(name for name, each in NAMES.items() if len(each) == len(own.names))
            raise ErfscopeError(f"axes {axes} are {len(names)}, and the input has {len(own.names)}: choose {fit}")
        own = Axes.named(names)
    steps, units = list(own.spacing), list(own.units)
    if spacing is not None or unit_name is not None:
        sides: Sequence[float] = spacing if isinstance(spacing, Sequence) else [1.0 if spacing is None else spacing]
        given = [float(side) for side in sides] * (len(own.measured) if len(sides) == 1 else 1)
        if len(given) != len(own.measured) or not all(0 < step < math.inf for step in given):
            called = ", ".join(own.names[axis] for axis in own.measured)
            raise ErfscopeError(
                f"spacing is one positive number, or one for each of {called}, not {', '.join(map(brief, given))}"
            )
        for axis, step in zip(own.measured, given, strict=True):
            steps[axis], units[axis] = step, unit_name or "units"
    if unit_name and spacing is None and len(own.names) > 1:
        raise ErfscopeError(
            "unit-name is the unit of a spacing, or what samples of a sequence are called; add --spacing"
        )
    cell = unit_name if unit_name and spacing is None else own.cell
    for name, rate, rank in (("fps", fps, 3), ("sample_rate", sample_rate, 1)):
        if rate is None:
            continue
        if not 0 < rate < math.inf:
            raise ErfscopeError(f"{name.replace('_', '-')} must be positive, not {brief(rate)}")
        if TIME not in own.names or len(own.names) != rank:
            what = "clips, axes thw" if rank == 3 else "sequences, which have one axis"
            raise ErfscopeError(f"{name.replace('_', '-')} is for {what}; this input has {', '.join(own.names)}")
        if spacing is not None and rank == 1:
            raise ErfscopeError("give either spacing or sample-rate, not both")
        axis = own.names.index(TIME)
        steps[axis], units[axis] = 1000 / rate, MS
    return Axes(names=own.names, spacing=tuple(steps), units=tuple(units), cell=cell)
