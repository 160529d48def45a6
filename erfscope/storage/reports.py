"""Reports on disk, read back."""

from __future__ import annotations

from pathlib import Path

from erfscope.results.report import Report
from erfscope.storage.files import read_document


def read(path: str | Path) -> Report:
    """A report stored by :meth:`Report.save`: a folder, or its .json file.

    Raises:
        ErfscopeError: no such file, or not a report.
    """
    document, results = read_document(Path(path))
    return Report(results=tuple(results), settings=document["settings"], environment=document["environment"])
