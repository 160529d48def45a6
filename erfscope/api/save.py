"""Writing a report: a folder, or one file whose suffix decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erfscope.errors import ErfscopeError
from erfscope.results.report import Report
from erfscope.storage import files
from erfscope.storage.files import FIGURES, TABLES, map_bytes, report_bytes, save_directory, write_bytes

SUFFIXES = (".html", ".json", *TABLES, *FIGURES, ".npz")
#: The page in the folder of a report.
PAGE = "index.html"


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`Report.save` could not write; called before anything is measured.

    Raises:
        ErfscopeError: the target exists, its folder does not, or its suffix is unknown.
    """
    files.check_output(path, SUFFIXES, force=force)


def save(report: Report, path: str | Path, *, force: bool, figure: str | None, drawn: bool, **style: Any) -> None:
    """Write a report; see :meth:`erfscope.Report.save`."""
    check_output(path, force=force)
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix in FIGURES:
        from erfscope.figures import figure_bytes

        shown = report.figure(kind=figure or "panel", **style)
        write_bytes(target, figure_bytes(shown, suffix), force=force)
    elif suffix in TABLES:
        write_bytes(target, report.table(format=TABLES[suffix]).encode(), force=force)
    elif suffix == ".html":
        from erfscope.page import html

        write_bytes(target, html(report, scale=style["scale"]).encode(), force=force)
    elif suffix == ".json":
        write_bytes(target, report_bytes(report.to_json()), force=force)
    elif suffix == ".npz":
        write_bytes(target, map_bytes(list(report.results)), force=force)
    elif not drawn:
        save_directory(report.to_json, list(report.results), target, others=[], force=force)
    else:
        from erfscope.figures import folder_figures
        from erfscope.page import html

        others = [(PAGE, html(report, scale=style["scale"]).encode())]
        # A figure that does not fit is no reason to lose everything else.
        misfit = None
        try:
            others += folder_figures(report.results, kind=figure, **style)
        except ErfscopeError as error:
            misfit = error
            others += folder_figures(report.results, **style)
        save_directory(report.to_json, list(report.results), target, others=others, force=force)
        if misfit is not None:
            raise misfit
