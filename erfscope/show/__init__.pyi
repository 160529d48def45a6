"""The names of show and where they are.

Type checkers read them here, and ``__init__.py`` loads each on first use.
"""

from erfscope.core.answer.depth import in_depth as in_depth
from erfscope.core.answer.storage.writing import check_output as check_output
from erfscope.core.answer.storage.writing import check_target as check_target
from erfscope.core.values.printable import brief as brief
from erfscope.core.values.printable import counted as counted
from erfscope.core.values.printable import fixed as fixed
from erfscope.core.values.printable import listed as listed
from erfscope.core.values.printable import listed_up_to as listed_up_to
from erfscope.core.values.printable import number as number
from erfscope.core.values.printable import one_line as one_line
from erfscope.core.values.printable import plus as plus
from erfscope.core.values.printable import printable as printable
from erfscope.core.values.printable import rounded as rounded
from erfscope.core.values.printable import with_error as with_error
from erfscope.core.values.unit import size_text as size_text
from erfscope.show.figures.chart_data import Chart as Chart
from erfscope.show.figures.chart_data import ChartMap as ChartMap
from erfscope.show.figures.chart_data import Curve as Curve
from erfscope.show.figures.chart_data import Picture as Picture
from erfscope.show.files import write as write
from erfscope.show.files import write_folder as write_folder
from erfscope.show.shown import Shown as Shown
from erfscope.show.view.depth import depth_sentences as depth_sentences
from erfscope.show.view.depth import depth_table as depth_table
from erfscope.show.view.extras import halo_text as halo_text
from erfscope.show.view.fit import aligned as aligned
from erfscope.show.view.table import DASH as DASH
from erfscope.show.view.table import MISSING as MISSING
from erfscope.show.view.table import Cell as Cell
from erfscope.show.view.table import Column as Column
from erfscope.show.view.table import Note as Note
from erfscope.show.view.table import Table as Table
from erfscope.show.view.table import TableRow as TableRow
from erfscope.show.view.table import Value as Value
from erfscope.show.view.table import format_table as format_table
from erfscope.show.view.table import markdown as markdown
from erfscope.show.view.table import markdown_text as markdown_text
from erfscope.show.view.table import rows_of as rows_of
from erfscope.show.view.words import GLOSS as GLOSS
from erfscope.show.view.words import IN_PLANE as IN_PLANE
from erfscope.show.view.words import IN_PLANE_MEANS as IN_PLANE_MEANS
from erfscope.show.view.words import RADII as RADII
from erfscope.show.view.words import convention_text as convention_text
from erfscope.show.view.words import gloss_of as gloss_of
from erfscope.show.view.words import images_text as images_text
from erfscope.show.view.words import lengths_text as lengths_text
from erfscope.show.view.words import over_text as over_text
from erfscope.show.view.words import random_weights as random_weights
from erfscope.show.view.words import sides_text as sides_text
from erfscope.show.view.words import square_text as square_text
from erfscope.show.view.words import weights_condition as weights_condition
from erfscope.show.view.words import weights_words as weights_words
