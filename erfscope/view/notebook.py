"""Results as fragments of HTML for notebooks: no script, nothing that touches the rest of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.view.drawings import Drawing
from erfscope.view.page import template
from erfscope.view.report_view import ReportView


def result_fragment(view: ReportView, maps: Sequence[Drawing | None], *, scale: str) -> str:
    """One result: its map with rings, and its sizes."""
    return str(template("result.html.j2").render(view=view, row=view.rows[0], drawn=maps[0], scale=scale))


def report_fragment(view: ReportView, maps: Sequence[Drawing | None], *, scale: str) -> str:
    """All results: the table, with a small map in each row."""
    return str(template("report.html.j2").render(view=view, maps=maps, scale=scale))
