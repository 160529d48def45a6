"""Figures of results; the one door to matplotlib.

May import: ``view``, ``storage`` and below.
"""

from erfscope.figures.canvas import figure_bytes, save
from erfscope.figures.kinds import (
    FIGURES,
    Kind,
    default_kind,
    figure_of,
    fitting,
    folder_figures,
    panel,
    png_bytes,
    refuse_unasked,
)
from erfscope.figures.panels import panel_beside
from erfscope.figures.pixels import COLOURS, SCALES
from erfscope.figures.pixels import display as displayed

__all__ = [
    "COLOURS",
    "FIGURES",
    "SCALES",
    "Kind",
    "default_kind",
    "displayed",
    "figure_bytes",
    "figure_of",
    "fitting",
    "folder_figures",
    "panel",
    "panel_beside",
    "png_bytes",
    "refuse_unasked",
    "save",
]
