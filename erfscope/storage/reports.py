"""Reports on disk, read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from erfscope.results.comparability import place_of
from erfscope.results.report import Report, unique_ids
from erfscope.storage.files import read_document, rows_of
from erfscope.storage.writing import REPORT


def read(path: str | Path) -> Report:
    """A report stored by :meth:`Report.save`: a folder, or its .json file. Of a run that was killed these are the rows
    that it had finished, where there is no older report.

    Raises:
        ErfscopeError: no such file, or not a report.
    """
    path = Path(path)
    return _read_report(path) if (path / REPORT).is_file() or not rows_of(path) else _read_rows(path)


def read_begun(path: str | Path) -> Report:
    """The run that a folder holds: its rows where it has not ended, even beside an older report, else its report.

    Raises:
        ErfscopeError: as :func:`read`.
    """
    return _read_rows(Path(path)) if rows_of(Path(path)) else read(path)


def _read_report(path: Path) -> Report:
    document, results = read_document(path)
    return Report(results=tuple(results), settings=document["settings"], environment=document["environment"])


def _read_rows(path: Path) -> Report:
    """The rows of a run that has not ended; of one that was measured again the last one counts."""
    reports = [_read_report(each) for each in rows_of(path)]
    last = {place_of(row): row for report in reports for row in report}
    return replace(reports[-1], results=unique_ids([*last.values()]))
