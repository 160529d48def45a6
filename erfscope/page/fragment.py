"""Results as fragments of HTML for notebooks: no script, nothing that touches the rest of the notebook."""

from __future__ import annotations

from erfscope.page.cards import cards
from erfscope.page.document import template
from erfscope.page.pictures import first_uri, views
from erfscope.page.rows import result_table
from erfscope.page.words import labels, warnings_first
from erfscope.results.report import Report
from erfscope.results.result import Result

#: Pixels of a map beside the sizes, and in a table.
LARGE, SMALL = 240, 96


def result_fragment(result: Result) -> str:
    """One result: its map with rings, and its sizes."""
    report = Report(results=(result,))
    drawn = views([result], longest=LARGE, overlaid=False)
    card = cards(report.to_json(), report, labels(report), drawn)[0]
    uri = None if drawn[0] is None else first_uri(drawn[0])
    return str(template("result.html.j2").render(card=card, uri=uri, shouts=warnings_first(report)))


def report_fragment(report: Report) -> str:
    """All results: the table, with a small map in each row."""
    drawn = views(report.results, longest=SMALL, overlaid=False)
    table = result_table(report.to_json(), report, labels(report)) if len(report) else None
    uris = [None if view is None else first_uri(view) for view in drawn]
    return str(template("report.html.j2").render(table=table, views=drawn, uris=uris, shouts=warnings_first(report)))
