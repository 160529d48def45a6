"""Windows of the output by their words, and where they stand in the input."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from erfscope.apps.lam.attribution import LamWindow, edges
from erfscope.core import ErfscopeError, MeasurementError, Site, Trf
from erfscope.show import size_text

#: Side of a window that is named without one, pixels of the output.
SIZE = 16
#: Windows along each axis, or of the largest texture, at most.
MOST = 64


def windows_of(words: Any, space: Sequence[int], x: Tensor, size: int = SIZE) -> list[LamWindow]:
    """The windows that words mean.

    Args:
        words: ``"r,c,size"`` or ``"r,c"`` (``"z,r,c,size"`` of volumes), ``"centre"``, ``"grid:N"`` (N along each axis)
            or ``"texture:K"`` (the K windows side by side with the largest objective in the input itself); a sequence
            of numbers; or several of these.
        space: Pixels of the output along each axis.
        x: The input (C, *space).
        size: The side of windows that are named without one.

    Raises:
        ErfscopeError: not one of these, or a window outside the output.
    """
    several = isinstance(words, list | tuple) and not all(isinstance(each, int) for each in words)
    found = [window for word in (words if several else [words]) for window in _windows(word, space, x, size)]
    for window in found:
        if window.size < 1 or any(
            low < 0 or low + window.size >= side for low, side in zip(window.start, space, strict=True)
        ):
            text, last = ",".join(map(str, (*window.start, window.size))), [side - window.size - 1 for side in space]
            latest = f"one of {window.size} begins at {','.join(map(str, last))} at the latest"
            raise ErfscopeError(
                f"window {text} lies outside the output, {size_text(space)} pixels, of which each window leaves the"
                f" last row and column free: {latest if min(last) >= 0 else f'the largest is {min(space) - 1} wide'}"
            )
    return list(dict.fromkeys(found))


def _windows(word: Any, space: Sequence[int], x: Tensor, size: int) -> list[LamWindow]:
    text = word if isinstance(word, str) else ",".join(map(str, word))
    if text in ("centre", "center"):
        return _windows("grid:1", space, x, size)
    if (several := re.fullmatch(r"(grid|texture):(\d+)", text)) and 1 <= (count := int(several[2])) <= MOST:
        if several[1] == "grid":
            middles = [[(place + 0.5) * side / count for place in range(count)] for side in space]
            return [LamWindow(tuple(round(at - size / 2) for at in each), size) for each in itertools.product(*middles)]
        places = itertools.product(*(range(0, side - size, size) for side in space))
        return sorted((LamWindow(at, size) for at in places), key=lambda each: -_texture(x, each, space))[:count]
    numbers = [int(each) for each in text.split(",")] if re.fullmatch(r"-?\d+(,-?\d+)*", text) else []
    if len(numbers) - len(space) not in (0, 1):
        example = ",".join(["110", "150", "64"][: len(space)])
        raise ErfscopeError(
            f"cannot read the window {text!r}; write {example},{SIZE} (where it begins, and its side, in pixels of the"
            f" output), centre, grid:N or texture:K with up to {MOST}"
        )
    return [LamWindow(tuple(numbers[: len(space)]), [*numbers, size][len(space)])]


def _texture(x: Tensor, window: LamWindow, space: Sequence[int]) -> float:
    """The objective of the part of the input that has a window's place."""
    scale = space[0] / x.shape[1]
    part = LamWindow(tuple(int(low / scale) for low in window.start), max(1, round(window.size / scale)))
    if any(low + part.size >= side for low, side in zip(part.start, x.shape[1:], strict=True)):
        return -1.0
    return float(edges(x[None], part))


class LamPlace(NamedTuple):
    """Where a window stands in the input."""

    centre: tuple[float, ...]
    #: Where the centres of its first and of its last pixel stand along each axis.
    sides: tuple[tuple[float, float], ...]
    #: First and last cell inside the input that any of its pixels can read: the box of theoretical receptive fields.
    field: tuple[tuple[int, int], ...]
    #: Sides of the same box where no border cuts it off; "global" where it is the whole input.
    size_text: str


def place_of(site: Site, window: LamWindow) -> LamPlace:
    """The place of a window in the input, by the theoretical receptive fields of its first pixel and of the last one
    that the objective reads."""
    first, last, read = (site.trf([low + more for low in window.start]) for more in (0, window.size - 1, window.size))
    sides = tuple(zip(first.center_px, last.center_px, strict=True))
    return LamPlace(
        centre=tuple((low + high) / 2 for low, high in sides),
        sides=sides,
        field=tuple((low[0], high[1]) for low, high in zip(first.clipped_box_px, read.clipped_box_px, strict=True)),
        size_text="global"
        if first.is_global
        else size_text([high[1] - low[0] + 1 for low, high in zip(first.box_px, read.box_px, strict=True)]),
    )


def refuse_no_image(site: Site, label: str) -> None:
    """Refuse an output that is no restored image.

    Raises:
        MeasurementError: it has other axes than the input, or pixels that stand outside it.
    """
    inside, given = site.reference_space, size_text(site.space)
    if len(site.space) != len(inside):
        raise MeasurementError(f"gives a map of {given} for an input of {size_text(inside)}, no image", model=label)
    ends: list[Trf] = [site.trf([0] * len(inside)), site.trf([side - 1 for side in site.space])]
    if any(not -0.5 <= at <= side - 0.5 for end in ends for at, side in zip(end.center_px, inside, strict=True)):
        raise MeasurementError(
            f"pads its input and returns the padding: {given} pixels for {size_text(inside)}; crop the image to sides"
            " that the model leaves as they are, or what it returns with erfscope.wrap(model, forward=...)",
            model=label,
        )
