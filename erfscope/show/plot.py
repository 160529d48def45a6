"""Figures: sheets and lines in the style of a report's, a check's panel, points against a cost, panels of charts."""

from erfscope.show.drawn import brightness
from erfscope.show.figures.canvas import drawing, figure_bytes, finish, sheet, write_title
from erfscope.show.figures.charts import draw
from erfscope.show.figures.front import Point, front_figure
from erfscope.show.figures.lettering import name_lines, write_over
from erfscope.show.figures.lines import COLOURS, ROUND, line_style, scale_axis, tidy
from erfscope.show.figures.maps import colour_map
from erfscope.show.figures.panels import panel_with_expected
from erfscope.show.figures.style import ONE_COLUMN, TWO_COLUMNS

__all__ = [
    "COLOURS",
    "ONE_COLUMN",
    "ROUND",
    "TWO_COLUMNS",
    "Point",
    "brightness",
    "colour_map",
    "draw",
    "drawing",
    "figure_bytes",
    "finish",
    "front_figure",
    "line_style",
    "name_lines",
    "panel_with_expected",
    "scale_axis",
    "sheet",
    "tidy",
    "write_over",
    "write_title",
]
