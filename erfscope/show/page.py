"""Pages and fragments of HTML: the view of a report with drawings of its maps, and the style of pages for others."""

from __future__ import annotations

from typing import Unpack

from erfscope.core.answer.figure_style import Style
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.show.figures.draw import drawings, views
from erfscope.show.figures.style import FigureStyle
from erfscope.show.view import page
from erfscope.show.view.page import assets, template_of
from erfscope.show.view.report_view import report_view

__all__ = ["assets", "html", "report_fragment", "result_fragment", "template_of"]

#: Pixels of a map in a notebook: beside the sizes, and in a table.
LARGE, SMALL = 240, 96


def html(report: Report, *, in_folder: bool = False, **style: Unpack[Style]) -> str:
    """A report as one self-contained page; see :func:`erfscope.show.view.page.html`.

    Args:
        report: Results, usable or not.
        in_folder: Whether the files of the maps are written beside the page.
        **style: As for :meth:`erfscope.Report.figure`: the scale of the maps when the page is opened, and the
            range of their colours, which switches change, and their colour map; the rest is of figures alone.

    Raises:
        ErfscopeError: an unknown scale, range of colours or colour map.
    """
    chosen = FigureStyle(**style)
    chosen.check()
    return page.html(report_view(report), drawings(report.results, chosen), in_folder=in_folder)


def result_fragment(result: Result) -> str:
    """One result for a notebook."""
    maps = views([result], longest=LARGE, overlaid=False)
    return page.result_fragment(report_view(Report(results=(result,))), maps, scale=FigureStyle().scale)


def report_fragment(report: Report) -> str:
    """All results for a notebook."""
    maps = views(report.results, longest=SMALL, overlaid=False)
    return page.report_fragment(report_view(report), maps, scale=FigureStyle().scale)
