"""An ERF map in the terminal: half blocks in colour, a density ramp without; the unit and the r50 and r90 rings on it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text
from rich_pixels import Pixels

from erfscope.result import Result

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
        # Sixteen colours are too few for a map.
        if console.color_system in (None, "standard") or console.no_color:
            yield Text("\n".join(self.ramp()), no_wrap=True)
        else:
            yield Pixels.from_image(Image.fromarray(self.picture()))

    def picture(self) -> NDArray[np.uint8]:
        """The map in colour with its marks, (rows, columns, 3) RGB."""
        shown = cv2.cvtColor(cv2.applyColorMap((self.levels() * 255).astype(np.uint8), cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB)
        pixels = np.asarray(shown, dtype=np.uint8).reshape(*self.shape, 3).copy()
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
        rows, columns = self.shape
        shrinks = rows <= self.erf.values.shape[0]
        mode = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
        small = np.asarray(cv2.resize(np.ascontiguousarray(self.erf.magnitude), (columns, rows), interpolation=mode), dtype=np.float64)
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
