"""The windows that figures, pages and the terminal show: one for all maps that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.result import Result
from erfscope.core.request.values import AUTO, zoom_side
from erfscope.show.drawn import CloseUp, close_up, needed_side
from erfscope.show.view.words import radii

#: The whole input is drawn where a window would be larger than this part of its shortest side.
LARGEST = 1 / 4
#: Close-ups stand beside maps whose ERFs, or the windows that these need, differ by more than ``APART`` times, where
#: the ERF needs at most this part of the common window.
APART, SMALL = 10.0, 1 / 5
#: A panel that is flatter, or narrower, than this has no room for a close-up in a corner.
FLAT = 1 / 4
#: What holds where panels of several inputs, or one bar for several panels, show lengths.
ONE_SCALE = "one scale of lengths for all maps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """What is drawn of one map."""

    part: CloseUp
    #: The surroundings of an ERF that is a dot beside the others; None elsewhere.
    close: CloseUp | None

    @property
    def close_text(self) -> str:
        """The label of the close-up; "" where there is none."""
        return "" if self.close is None else f"close-up {self.close.side_text}"

    @property
    def in_corner(self) -> Windowed:
        """The same without a close-up where no corner of the panel has room for it."""
        sides = np.multiply(self.part.frame, self.part.erf.axes.spacing)
        return self if len(sides) > 1 and min(sides) >= FLAT * max(sides) else replace(self, close=None)


def windows(results: Sequence[Result], zoom: str | float = AUTO, *, solid: bool = False) -> list[Windowed | None]:
    """What is drawn of each map: of all maps on one input, or on inner maps of one name, a window of one side.

    Maps of smaller inputs stand in the middle of a panel that shows as much as the others do.

    Args:
        results: Those of one comparison; None is returned for one without a map.
        zoom: ``"auto"``, as wide as the largest ERF needs; ``"none"``, the whole input; or the window's side.
        solid: Whether maps are drawn with all of their axes, and not as planes.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, result in enumerate(results):
        if result.map is not None:
            axes = result.map.axes
            groups.setdefault((result.wrt, axes.names, axes.units), []).append(number)
    found: list[Windowed | None] = [None] * len(results)
    for numbers in groups.values():
        together = [results[number] for number in numbers]
        maps = [each.map if solid else each.map.plane for each in together if each.map is not None]
        for number, each in zip(numbers, _together(together, maps, zoom), strict=True):
            found[number] = each
    return found


def _together(results: Sequence[Result], maps: Sequence[ErfMap], zoom: str | float) -> list[Windowed]:
    """The windows of maps that share a scale of lengths."""
    sides = [[n * step for n, step in zip(erf.values.shape, erf.axes.spacing, strict=True) if n > 1] for erf in maps]
    side, needs = zoom_side(zoom), [needed_side(erf) for erf in maps]
    if zoom == AUTO and max(needs) <= LARGEST * max(min(each, default=0.0) for each in sides):
        side = max(needs)
    parts = [close_up(erf, side) for erf in maps]
    shown = np.max([np.multiply(part.erf.values.shape, part.erf.axes.spacing) for part in parts], axis=0)
    frames = [tuple(map(float, shown / erf.axes.spacing)) for erf in maps]
    whole = max(max(each, default=0.0) for each in sides) if side is None else side
    sizes = [float(radii(result).get("r50", 0.0)) for result in results]
    differ = max(sizes) > APART * min(sizes) > 0 or whole > APART * min(needs)
    small = [zoom == AUTO and differ and len(maps) > 1 and need <= SMALL * whole for need in needs]
    return [
        Windowed(part=replace(part, frame=frame), close=_close(erf, need) if is_small else None)
        for part, frame, erf, need, is_small in zip(parts, frames, maps, needs, small, strict=True)
    ]


def _close(erf: ErfMap, need: float) -> CloseUp:
    """The close-up of a map, which names its side where it is the whole of a small input too."""
    longest = float(max(np.multiply(erf.values.shape, erf.axes.spacing)))
    return replace(close_up(erf, need), side=min(need, longest))


def bar_is_right(part: CloseUp) -> bool:
    """Whether the scale bar of a map stands on the right, since its unit is on the left."""
    return bool(part.erf.center_px) and part.erf.center_px[1] < 0.35 * part.erf.values.shape[1]


def inset_corner(shown: Windowed) -> tuple[bool, bool]:
    """Whether a close-up stands on the right, and whether it stands at the bottom, of its map: where neither the unit
    nor the scale bar is."""
    return not bar_is_right(shown.part), shown.part.erf.center_px[0] < 0.45 * shown.part.erf.values.shape[0]


def window_notes(found: Sequence[Windowed | None]) -> list[str]:
    """What panels show, for captions."""
    present = [each for each in found if each is not None]
    sides = list(dict.fromkeys(each.part.side_text for each in present))
    notes = [f"shown: a window of {side} around the unit" if side else "shown: the whole input" for side in sides]
    if any(each.part.frame != tuple(each.part.erf.values.shape) for each in present):
        notes.append(ONE_SCALE)
    if closest := list(dict.fromkeys(each.close.side_text for each in present if each.close is not None)):
        notes.append(f"close-ups of {', '.join(closest)} where the ERF would be a dot")
    return notes
