"""Figures of results; the one door to matplotlib.

May import: ``tables``, ``storage`` and below.
"""

from erfscope.figures.canvas import figure_bytes, save
from erfscope.figures.kinds import FIGURES, Kind, figure_of, fitting, folder_figures, panel, png_bytes
from erfscope.figures.panels import panel_beside
from erfscope.figures.pixels import COLOURS, SCALES
from erfscope.figures.pixels import display as displayed

__all__ = [
    "COLOURS",
    "FIGURES",
    "SCALES",
    "Kind",
    "displayed",
    "figure_bytes",
    "figure_of",
    "fitting",
    "folder_figures",
    "panel",
    "panel_beside",
    "png_bytes",
    "save",
]
