"""What applications print and write with: tables, columns, notes and lines, the words for results and numbers, and the
writer of files. Beside it :mod:`erfscope.show.drawn`, what is drawn of a map, and :mod:`erfscope.show.terminal`,
:mod:`erfscope.show.page` and :mod:`erfscope.show.plot`, which import rich, Jinja and matplotlib.

May import: ``core`` and below.
"""

from erfscope.core.answer.depth import in_depth
from erfscope.core.answer.storage.writing import check_output, check_target
from erfscope.core.values.printable import (
    brief,
    counted,
    fixed,
    listed,
    listed_up_to,
    number,
    one_line,
    plus,
    printable,
    rounded,
    with_error,
)
from erfscope.core.values.unit import size_text
from erfscope.show.figures.chart_data import Chart, ChartMap, Curve, Picture
from erfscope.show.files import write, write_folder
from erfscope.show.shown import Shown
from erfscope.show.view.depth import depth_sentences, depth_table
from erfscope.show.view.extras import halo_text
from erfscope.show.view.fit import aligned
from erfscope.show.view.table import (
    DASH,
    Cell,
    Column,
    Note,
    Table,
    TableRow,
    Value,
    format_table,
    markdown,
    markdown_text,
    rows_of,
)
from erfscope.show.view.words import (
    GLOSS,
    IN_PLANE,
    IN_PLANE_MEANS,
    RADII,
    convention_text,
    gloss_of,
    images_text,
    lengths_text,
    over_text,
    random_weights,
    sides_text,
    square_text,
    weights_condition,
    weights_words,
)

__all__ = [
    "DASH",
    "GLOSS",
    "IN_PLANE",
    "IN_PLANE_MEANS",
    "RADII",
    "Cell",
    "Chart",
    "ChartMap",
    "Column",
    "Curve",
    "Note",
    "Picture",
    "Shown",
    "Table",
    "TableRow",
    "Value",
    "aligned",
    "brief",
    "check_output",
    "check_target",
    "convention_text",
    "counted",
    "depth_sentences",
    "depth_table",
    "fixed",
    "format_table",
    "gloss_of",
    "halo_text",
    "images_text",
    "in_depth",
    "lengths_text",
    "listed",
    "listed_up_to",
    "markdown",
    "markdown_text",
    "number",
    "one_line",
    "over_text",
    "plus",
    "printable",
    "random_weights",
    "rounded",
    "rows_of",
    "sides_text",
    "size_text",
    "square_text",
    "weights_condition",
    "weights_words",
    "with_error",
    "write",
    "write_folder",
]
