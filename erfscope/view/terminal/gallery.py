"""The maps of several results side by side in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import size_text
from erfscope.results.result import Result
from erfscope.view.terminal.heatmap import HeatMap
from erfscope.view.words import IN_PLANE, distinctions

#: The least and the greatest width of one of several maps.
NARROWEST, WIDEST = 16, 32
#: Between two maps.
GAP = 2
#: Terminals narrower than this show no maps, and none more than this many.
MIN_WIDTH, MOST = 60, 12


class Gallery:
    """A rich renderable: the maps of all usable results, each under its name, as many side by side as fit."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = [result for result in results if result.ok and result.map is not None]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if not self.results or width < MIN_WIDTH:
            return
        shown = self.results[:MOST]
        rows = math.ceil(len(shown) / ((width + GAP) // (NARROWEST + GAP)))
        across = math.ceil(len(shown) / rows)
        side = min(WIDEST, (width + GAP) // across - GAP)
        heats = [HeatMap(result, side) for result in shown]
        maps, differences = [heat.drawn(console) for heat in heats], distinctions(self.results)
        for first in range(0, len(shown), across):
            grid = Table.grid(padding=(0, GAP, 0, 0))
            line = shown[first : first + across]
            for _ in line:
                grid.add_column(width=side)
            labels = zip(heats[first : first + across], differences[first : first + across], strict=True)
            grid.add_row(*(self._label(heat, each, side) for heat, each in labels))
            grid.add_row(*(drawn.text for drawn in maps[first : first + across]))
            yield Text()
            yield grid
        if maps[0].fault is not None:
            yield Text(maps[0].fault, style="yellow")
        yield Text(self._legend(maps[0].key, zooms={heat.close_up.zoom for heat in heats}), style="dim")

    def _label(self, heat: HeatMap, differences: Mapping[str, str], width: int) -> Text:
        """The label of a map, and below it what tells it from others of that label; each cut to the map's width."""
        result = heat.result
        # The layer has its reference beside it.
        reference = [] if result.wrt == IMAGE or "layer" in differences else [f"wrt {result.wrt}"]
        facts = [*differences.values(), *reference, *heat.close_up.words]
        lines = [Text(result.label, style="bold"), *([Text(" · ".join(facts))] if facts else [])]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Text("\n").join(lines)

    def _legend(self, key: str, *, zooms: set[int]) -> str:
        """The key to shades and marks, a warning of different scales, and the number of maps left out."""
        parts = [key]
        spaces = {size_text(result.map.values.shape) for result in self.results if result.map is not None}
        if len(spaces) > 1 or len(zooms) > 1:
            parts.append("maps are not to one scale")
        if any(result.is_in_plane for result in self.results):
            parts.append(f"maps of three axes are summed over the first, rings are {IN_PLANE}")
        more = len(self.results) - MOST
        if more > 0:
            parts.append(f"{more} more map{'s' * (more != 1)}: -o DIR writes all of them")
        return " · ".join(parts)
