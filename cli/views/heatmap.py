"""An ERF map in the terminal: half blocks in colour, a density ramp without; the unit and the r50 and r90 rings on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text
from rich_pixels import Pixels

from erfscope.environment import OPENCV_FIX
from erfscope.results.result import Result

RAMP = " .:-=+*#%@"
#: Exponent of the values as shown: a linear scale would leave all but the centre black.
POWER = 0.5
R50, R90, UNIT = (255, 255, 255), (127, 212, 255), (80, 250, 123)


class HeatMap:
    """A rich renderable of one result's map, ``columns`` wide and as high as its aspect asks for."""

    def __init__(self, result: Result, columns: int = 36) -> None:
        assert result.map is not None
        self.result, self.erf = result, result.map.plane
        height, width = self.erf.values.shape
        rows = max(1, round(columns * height / width))
        if rows > 2 * columns:
            columns, rows = max(1, round(2 * columns * width / height)), 2 * columns
        #: Pixels shown, (rows, columns); two rows share a line of text.
        self.shape = (max(2, rows + rows % 2), max(2, columns))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.shape[1], self.shape[1])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, fault = self.shown(console)
        yield shown
        if fault is not None:
            yield Text(fault, style="yellow")

    def shown(self, console: Console) -> tuple[RenderableType, str | None]:
        """The map in colour, or as a ramp where there is none; and why, where colours were wanted."""
        ramp = Text("\n".join(self.ramp()), no_wrap=True)
        # Sixteen colours are too few for a map.
        if console.color_system in (None, "standard") or console.no_color:
            return ramp, None
        try:
            return Pixels.from_image(Image.fromarray(self.picture())), None
        except ImportError as error:
            # The measurement is done by now; it must not be lost for want of colours.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
            return ramp, f"no colours, since cv2 cannot be imported ({reason}): {OPENCV_FIX}"

    def picture(self) -> NDArray[np.uint8]:
        """The map in colour with its marks, (rows, columns, 3) RGB.

        Raises:
            ImportError: OpenCV, or a system library that it needs, is missing.
        """
        pixels = inferno((self.levels() * 255).astype(np.uint8))
        for name, colour in (("r90", R90), ("r50", R50)):
            pixels[self.ring(name)] = colour
        row, col = self.unit()
        if 0 <= row < self.shape[0] and 0 <= col < self.shape[1]:
            pixels[row, col] = UNIT
        return pixels

    def ramp(self) -> list[str]:
        """The map as text, one character for two rows: darker where the ERF is stronger, o for r50, O for r90, + for the unit."""
        levels = self.levels()
        lines = levels.reshape(self.shape[0] // 2, 2, self.shape[1]).mean(1)
        text = [[RAMP[min(int(value * len(RAMP)), len(RAMP) - 1)] for value in line] for line in lines]
        for name, mark in (("r90", "O"), ("r50", "o")):
            for row, col in np.argwhere(self.ring(name)):
                text[row // 2][col] = mark
        row, col = self.unit()
        if 0 <= row < self.shape[0] and 0 <= col < self.shape[1]:
            text[row // 2][col] = "+"
        return ["".join(line) for line in text]

    def levels(self) -> NDArray[np.float64]:
        """Strength as shown, (rows, columns) in [0, 1]: cell means to the power 0.5, relative to the strongest."""
        values = self.erf.magnitude
        rows, columns = (_area_means(whole, shown) for whole, shown in zip(values.shape, self.shape, strict=True))
        small = rows @ values @ columns.T
        peak = small.max()
        return np.asarray((small / peak) ** POWER, dtype=np.float64) if peak > 0 else small

    def unit(self) -> tuple[int, int]:
        """Where the unit's centre is shown."""
        row, col = (
            int((c + 0.5) * shown / whole) for c, shown, whole in zip(self.erf.center_px, self.shape, self.erf.values.shape, strict=True)
        )
        return row, col

    def ring(self, name: str) -> NDArray[np.bool_]:
        """Shown pixels that the circle of a radius measure passes through, (rows, columns)."""
        radius = self.result.measures.get(name)
        if radius is None or not isinstance(radius.value, float) or radius.value <= 0:
            return np.zeros(self.shape, dtype=bool)
        sides = [whole / shown for whole, shown in zip(self.erf.values.shape, self.shape, strict=True)]
        rows, columns = ((np.arange(n) + 0.5) * side - 0.5 for n, side in zip(self.shape, sides, strict=True))
        distance = np.hypot(rows[:, None] - self.erf.center_px[0], columns[None, :] - self.erf.center_px[1])
        return np.asarray(np.abs(distance - radius.value) <= max(sides) / 2)


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


def _area_means(whole: int, shown: int) -> NDArray[np.float64]:
    """Weights (shown, whole) that average ``whole`` cells into ``shown`` equal parts; cells on a border count as far as they lie inside."""
    side = whole / shown
    first, cell = np.arange(shown)[:, None] * side, np.arange(whole)[None, :]
    inside = np.minimum(first + side, cell + 1) - np.maximum(first, cell)
    return np.asarray(np.maximum(inside, 0.0) / side, dtype=np.float64)
