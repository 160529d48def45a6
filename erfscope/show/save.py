"""Writing a report: a folder, or one file whose suffix decides."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from erfscope.core.answer.figure_style import Style
from erfscope.core.answer.report import Report
from erfscope.core.answer.storage.files import map_bytes, report_bytes, save_directory
from erfscope.core.answer.storage.writing import FORMATS, check_output, is_folder, write_bytes
from erfscope.core.values.errors import ErfscopeError

#: The page in the folder of a report.
PAGE = "index.html"


def save(
    report: Report, path: str | Path, *, force: bool, figure: str | None, drawn: bool, **style: Unpack[Style]
) -> None:
    """Write a report; see :meth:`erfscope.Report.save`."""
    check_output(path, force=force)
    target = Path(path)
    if is_folder(path):
        others, misfit = _drawn(report, figure, **style) if drawn else ([], None)
        save_directory(report.to_json, list(report.results), target, others=others, force=force)
        if misfit is not None:
            raise misfit
    else:
        write_bytes(target, _content(report, target.suffix.lower(), figure, **style), force=force)


def _content(report: Report, suffix: str, figure: str | None, **style: Unpack[Style]) -> bytes:
    """The one file that a report is written to."""
    kind = FORMATS[suffix]
    if kind.content == "page":
        from erfscope.show.page import html

        return html(report, **style).encode()
    if kind.content == "figure":
        from erfscope.show.figures.canvas import figure_bytes

        return figure_bytes(report.figure(kind=figure, **style), suffix)  # type: ignore[arg-type]
    if kind.content == "table":
        return report.table(format=kind.table).encode()  # type: ignore[arg-type]
    if kind.content == "maps":
        return map_bytes(list(report.results))
    return report_bytes(report.to_json())


def _drawn(
    report: Report, figure: str | None, **style: Unpack[Style]
) -> tuple[list[tuple[str, bytes]], ErfscopeError | None]:
    """The page and the figures of a folder, and why the kind of figure that was asked for is not among them: no reason
    to lose everything else."""
    from erfscope.show.figures.draw import folder_figures
    from erfscope.show.page import html

    page = (PAGE, html(report, in_folder=True, **style).encode())
    try:
        return [page, *folder_figures(report.results, kind=figure, **style)], None
    except ErfscopeError as error:
        return [page, *folder_figures(report.results, **style)], error
