"""ERF maps in the terminal, alone or side by side: half blocks in colour, shade glyphs without; with the unit and the
r50 and r90 rings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.answer.result import Result
from erfscope.core.request.values import AUTO
from erfscope.core.system.environment import OPENCV_FIX
from erfscope.core.values.axes import DEPTH
from erfscope.core.values.names import is_input
from erfscope.show.drawn import BRIGHTNESS, DIGITS, CloseUp, averaged, brightness, close_up
from erfscope.show.view.windows import Windowed, window_notes, windows
from erfscope.show.view.words import IN_PLANE, distinctions

#: Shades from dark to bright.
RAMP = " .:-=*#%@"
#: Glyph and colour of each mark, in the order in which they are drawn; no glyph is a shade.
MARKS = {"r90": ("9", (127, 212, 255)), "r50": ("5", (255, 255, 255)), "unit": ("+", (80, 250, 123))}
GLYPH_KEY = (
    f"+ unit · 5 ring r50 · 9 ring r90 · {RAMP[-1]}: the strongest pixels, together 10 % of the ERF;"
    " blank lies beyond 99 %"
)
COLOUR_KEY = (
    "green: unit · white: ring r50 · blue: ring r90 · brightest: the strongest pixels, together 10 % of the ERF;"
    " black lies beyond 99 %"
)

#: The least and the greatest width of one of several maps.
NARROWEST, WIDEST = 16, 32
#: Between two maps, or a map and what stands beside it.
GAP = 2
#: Terminals narrower than this show no maps, and none more than this many.
MIN_WIDTH, MOST = 60, 12


class DrawnHeatMap(NamedTuple):
    """A map as text, the key to its marks and shades, and the reason why colours are missing."""

    text: Text
    key: str
    fault: str | None = None


class HeatMap:
    """One result's map, or a part of it, as high as its aspect asks for; what ``columns`` show is the part's frame."""

    def __init__(self, result: Result, columns: int, part: CloseUp | None = None) -> None:
        assert result.map is not None
        self.close_up = part or close_up(result.map.plane)
        self.result, self.erf = result, self.close_up.erf
        height, width = self.erf.values.shape
        columns = max(1, round(columns * width / self.close_up.frame[1]))
        rows = max(1, round(columns * height / width))
        if rows > 2 * columns:
            columns, rows = max(1, round(2 * columns * width / height)), 2 * columns
        #: Pixels shown, (rows, columns); two rows share a line of text.
        self.shape = (max(2, rows + rows % 2), max(2, columns))

    def drawn(self, console: Console) -> DrawnHeatMap:
        """The map in colour, or in shade glyphs where there is none."""
        fault = None
        if has_colours(console):
            try:
                return DrawnHeatMap(half_blocks(self.pixels()), self._key(COLOUR_KEY))
            except ImportError as error:
                # Missing colours must not lose a measurement.
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
                fault = f"no colours, since cv2 cannot be imported ({reason}): {OPENCV_FIX}"
        return DrawnHeatMap(lines_of(self.glyphs()), self._key(GLYPH_KEY), fault)

    def _key(self, key: str) -> str:
        """The key to the shades alone where the unit has no place."""
        key = key.replace("pixels", f"{self.result.axes.one_cell}s")
        return key if self.erf.center_px else key.rpartition(" · ")[2]

    def pixels(self) -> NDArray[np.uint8]:
        """The map in colour with its marks, (rows, columns, 3) RGB.

        Raises:
            ImportError: OpenCV, or a system library that it needs, is missing.
        """
        pixels = inferno((self.levels(self.shape) * 255).astype(np.uint8))
        for name, (_, colour) in MARKS.items():
            pixels[self.marked(name)] = colour
        return pixels

    def glyphs(self) -> NDArray[np.str_]:
        """The map as characters with its marks, (rows / 2, columns)."""
        rows, columns = self.shape
        glyphs = shaded(self.levels((rows // 2, columns)))
        for name, (glyph, _) in MARKS.items():
            glyphs[self.marked(name).reshape(-1, 2, columns).any(axis=1)] = glyph
        return glyphs

    def levels(self, shape: tuple[int, int]) -> FloatArray:
        """Brightness of the map averaged over (rows, columns): 1 for the cells that hold the first 10 % of it, 0 for
        those beyond 99 %."""
        return np.interp(brightness(averaged(self.erf.magnitude, shape)), (BRIGHTNESS[-2], BRIGHTNESS[1]), (0.0, 1.0))

    def marked(self, name: str) -> NDArray[np.bool_]:
        """Pixels that show one of ``MARKS``, (rows, columns): the unit's own, or those that the circle of a radius
        passes through."""
        found = np.zeros(self.shape, dtype=bool)
        spaces = list(zip(self.erf.values.shape, self.shape, strict=True))
        if name == "unit":
            if not self.erf.center_px:
                return found
            row, col = (
                int((c + 0.5) * shown / whole) for c, (whole, shown) in zip(self.erf.center_px, spaces, strict=True)
            )
            if 0 <= row < self.shape[0] and 0 <= col < self.shape[1]:
                found[row, col] = True
            return found
        radius = self.result.measures.get(name)
        if radius is None or not isinstance(radius.value, float) or radius.value <= 0:
            return found
        rows, columns = ((np.arange(shown) + 0.5) * whole / shown - 0.5 for whole, shown in spaces)
        center, (high, wide) = self.erf.center_px, self.erf.axes.spacing
        distance = np.hypot(high * (rows[:, None] - center[0]), wide * (columns[None, :] - center[1]))
        step = max(side * whole / shown for side, (whole, shown) in zip((high, wide), spaces, strict=True))
        return np.asarray(np.abs(distance - radius.value) <= step / 2)


class Gallery:
    """A rich renderable: the maps of all usable results, each under its name, as many side by side as fit."""

    def __init__(self, results: Sequence[Result], *, zoom: str | float = AUTO) -> None:
        self.results, self.zoom = [result for result in results if result.ok and result.map is not None], zoom

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if not self.results or width < MIN_WIDTH:
            return
        shown = [each for each in windows(self.results, self.zoom) if each is not None]
        panels = list(self._panels(shown[:MOST]))
        rows = math.ceil(len(panels) / ((width + GAP) // (NARROWEST + GAP)))
        across = math.ceil(len(panels) / rows)
        side = min(WIDEST, (width + GAP) // across - GAP)
        maps = [HeatMap(result, side, part).drawn(console) for result, part, _ in panels]
        for first in range(0, len(panels), across):
            grid = Table.grid(padding=(0, GAP, 0, 0))
            line = panels[first : first + across]
            for _ in line:
                grid.add_column(width=side, overflow="fold", vertical="bottom")
            grid.add_row(*(self._label(result, facts) for result, _, facts in line))
            grid.add_row(*(drawn.text for drawn in maps[first : first + across]))
            yield Text()
            yield grid
        if maps[0].fault is not None:
            yield Text(maps[0].fault, style="yellow")
        yield Text(self._legend(shown, maps[0].key), style="dim")

    def _panels(self, shown: Sequence[Windowed]) -> Iterator[tuple[Result, CloseUp, list[str]]]:
        """The maps that are shown and, after each, its close-up where it has one, with the facts in its label."""
        for result, differences, each in zip(self.results, distinctions(self.results), shown, strict=False):
            # The layer has its reference beside it.
            reference = [] if is_input(result.wrt) or "layer" in differences else [f"wrt {result.wrt}"]
            facts = [*differences.values(), *reference]
            yield result, each.part, [*facts, *each.part.words]
            if each.close is not None:
                yield result, each.close, [each.close_text, *facts]

    def _label(self, result: Result, facts: Sequence[str]) -> Text:
        """The label of a map, and below it what tells it from others of that label."""
        return Text("\n").join([Text(result.label, style="bold"), *([Text(" · ".join(facts))] if facts else [])])

    def _legend(self, shown: Sequence[Windowed], key: str) -> str:
        """What is shown, the key to it, a warning of different scales, and the number of maps left out."""
        notes = window_notes(shown)
        parts = [*(notes if len(notes) > 1 or any(each.part.side is not None for each in shown) else []), key]
        if len({(result.wrt, result.axes.units) for result in self.results}) > 1:
            parts.append("maps are not to one scale")
        if any(result.is_in_plane for result in self.results):
            parts.append(f"maps of clips are summed over time, rings are {IN_PLANE}")
        if any(DEPTH in result.axes.names for result in self.results):
            parts.append("maps of volumes are summed over depth, rings are those of the volume")
        more = len(self.results) - MOST
        if more > 0:
            parts.append(f"{more} more map{'s' * (more != 1)}: -o DIR writes all of them")
        return " · ".join(parts)


def input_image(picture: Any, shape: tuple[int, int], console: Console, *, part: CloseUp | None = None) -> Text:
    """The image that was shown to the model, as large as its map.

    Args:
        picture: uint8 (H, W, C), or frames (T, H, W, C), which are averaged.
        shape: Pixels shown, (rows, columns).
        console: Where it is shown.
        part: The part of it to show; None for all of it.
    """
    values = np.asarray(picture, dtype=np.float64)
    frames = values.reshape(-1, *(1, *values.shape)[-3:])
    shown = frames.mean(axis=0) if part is None else part.of(frames.mean(axis=0))
    bands = np.moveaxis(shown, -1, 0)
    if has_colours(console):
        bands = bands if len(bands) == 3 else bands.mean(axis=0)[None].repeat(3, axis=0)
        return half_blocks(np.stack([averaged(band, shape) for band in bands], axis=-1).round().astype(np.uint8))
    return lines_of(shaded(averaged(bands.mean(axis=0), (shape[0] // 2, shape[1])) / 255))


def has_colours(console: Console) -> bool:
    """Whether a terminal has half blocks and enough colours for a map; sixteen are too few."""
    return console.color_system in ("256", "truecolor") and not console.no_color and console.encoding.startswith("utf")


def half_blocks(pixels: NDArray[np.uint8]) -> Text:
    """Pixels (rows, columns, 3) RGB, an even number of rows, as text of half as many lines."""
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        text.append("\n" if text else "")
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", Style.from_color(Color.from_rgb(*above), Color.from_rgb(*below)))
    return text


def shaded(levels: FloatArray) -> NDArray[np.str_]:
    """The shade of each level in [0, 1]; the first and the last are for 0 and 1 alone."""
    steps = np.round(levels, DIGITS)  # means of equal cells differ by rounding
    return np.asarray(np.array(list(RAMP))[np.ceil(np.minimum(steps, 1) * (len(RAMP) - 2)).astype(int) + (steps >= 1)])


def lines_of(glyphs: NDArray[np.str_]) -> Text:
    """Characters (rows, columns) as text."""
    return Text("\n".join("".join(line) for line in glyphs), no_wrap=True)


def inferno(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The colours of levels (rows, columns), as (rows, columns, 3) RGB: the one door to OpenCV.

    Raises:
        ImportError: OpenCV, or a system library that it needs (libGL, libxcb), is missing.
    """
    # Late, since only colours need it; by name, since half an installation has an empty cv2.
    from cv2 import COLOR_BGR2RGB, COLORMAP_INFERNO, applyColorMap, cvtColor

    # OpenCV 4 and 5 differ in the shape of what they return; its own order is blue, green, red.
    shown = np.asarray(cvtColor(applyColorMap(levels, COLORMAP_INFERNO), COLOR_BGR2RGB), dtype=np.uint8)
    return shown.reshape(*levels.shape, 3).copy()
