"""What results are printed, drawn and written with: the one place where the values of the core meet what shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erfscope.core.answer.layers import LayerTable
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result
from erfscope.show.shown import Shown

Displayed = Result | Report | LayerTable | Shown


class ShownOutputs:
    """The text, tables, figures and files of results, reports and other values; each imports what it needs when it is
    wanted."""

    def line(self, shown: Result | Report) -> str:
        """A result or a report in one line."""
        from erfscope.show.view.sentences import report_line, result_line

        return report_line(shown) if isinstance(shown, Report) else result_line(shown)

    def text(self, shown: Displayed) -> str:
        """Any value as in a terminal, without colours and maps."""
        from erfscope.show.view.terminal.console import as_plain_text

        return as_plain_text(self._drawn(shown, maps=False))

    def drawn(self, shown: Displayed) -> Any:
        """Any value in a terminal."""
        return self._drawn(shown, maps=True)

    def _drawn(self, shown: Displayed, *, maps: bool) -> Any:
        if isinstance(shown, Shown):
            from erfscope.show.view.terminal.table import draw_parts

            return draw_parts(shown.parts())
        from erfscope.show.view.terminal.layers import layer_view
        from erfscope.show.view.terminal.report import draw_report, draw_result

        if isinstance(shown, LayerTable):
            return layer_view(shown)
        return draw_report(shown, maps=maps) if isinstance(shown, Report) else draw_result(shown, maps=maps)

    def fragment(self, shown: Displayed) -> str:
        """Any value for a notebook: results with their maps, others as text."""
        from erfscope.show.page import report_fragment, result_fragment
        from erfscope.show.view.terminal.console import as_html

        if isinstance(shown, Result):
            return result_fragment(shown)
        return report_fragment(shown) if isinstance(shown, Report) else as_html(str(shown))

    def table(self, report: Report, measures: Sequence[str] | None, *, compared: Sequence[str], format: str) -> str:
        """A report as text; see :func:`erfscope.show.view.tables.text_table`."""
        from erfscope.show.view.tables import text_table

        return text_table(report, measures, compared=compared, format=format)

    def frame(self, shown: Report | LayerTable, measures: Sequence[str] | None = None) -> Any:
        """The rows of a table in CSV as a data frame; that of layers has the layer as its index."""
        from erfscope.show.view.table import format_table
        from erfscope.show.view.tables import dataframe
        from erfscope.show.view.terminal.layers import layer_numbers

        if isinstance(shown, Report):
            return dataframe(shown.table(measures, format="csv"))
        return dataframe(format_table(layer_numbers(shown), "csv")).set_index("layer")

    def figure(
        self, results: Sequence[Result], kind: str | None, *, path: str | Path | None = None, **style: Any
    ) -> Any:
        """Results as a figure; see :func:`erfscope.show.figures.draw.figure_of`."""
        from erfscope.show.figures.draw import figure_of

        return figure_of(results, kind, path=path, **style)

    def document(self, report: Report, maps: Mapping[str, str] | None) -> dict[str, Any]:
        """A report as JSON values; see :func:`erfscope.core.answer.storage.json_format.report_to_json`."""
        from erfscope.core.answer.storage.json_format import report_to_json

        return report_to_json(report, maps)

    def save(self, shown: Result | Report, path: str | Path, **options: Any) -> None:
        """Write a report, or one of a single result; see :func:`erfscope.show.save.save`."""
        from erfscope.show.save import save

        if isinstance(shown, Result):
            Report(results=(shown,)).save(path, **options)
        else:
            save(shown, path, **options)
