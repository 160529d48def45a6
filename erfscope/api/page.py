"""Pages and fragments of HTML: the view of a report with drawings of its maps."""

from __future__ import annotations

from erfscope.figures.page_pictures import drawings, views
from erfscope.figures.style import DEFAULT_SCALE
from erfscope.results.report import Report
from erfscope.results.result import Result
from erfscope.view import notebook, page
from erfscope.view.report_view import report_view

#: Pixels of a map in a notebook: beside the sizes, and in a table.
LARGE, SMALL = 240, 96


def html(report: Report, *, scale: str = DEFAULT_SCALE) -> str:
    """A report as one self-contained page; see :func:`erfscope.view.page.html`.

    Args:
        report: Results, usable or not.
        scale: The scale of the maps when the page is opened, as for :meth:`erfscope.Report.figure`; a switch changes
            it.

    Raises:
        ErfscopeError: unknown scale.
    """
    return page.html(report_view(report), drawings(report.results, scale=scale))


def result_fragment(result: Result) -> str:
    """One result for a notebook."""
    maps = views([result], longest=LARGE, overlaid=False)
    return notebook.result_fragment(report_view(Report(results=(result,))), maps, scale=DEFAULT_SCALE)


def report_fragment(report: Report) -> str:
    """All results for a notebook."""
    maps = views(report.results, longest=SMALL, overlaid=False)
    return notebook.report_fragment(report_view(report), maps, scale=DEFAULT_SCALE)
