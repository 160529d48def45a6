"""The rows of a run that has not ended: stored one by one in the folder of its report, until that is there.

A folder with a ``report.json`` and no rows is finished. With rows, its report is an older one that a run is about to
replace, and stays until then; without a report, the rows are all that is known of the run."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from erfscope.errors import ErfscopeError
from erfscope.results.report import Report
from erfscope.storage.files import save_directory
from erfscope.storage.writing import REPORT, ROWS


def is_report(path: Path) -> bool:
    """Whether a folder holds a report, or rows of one."""
    return (path / REPORT).is_file() or bool(rows_of(path))


def rows_of(path: Path) -> list[Path]:
    """The folders of rows in that of a report, in the order in which they were stored."""
    return sorted(each.parent for each in (path / ROWS).glob(f"[0-9]*/{REPORT}"))


def begin_rows(path: Path) -> None:
    """Delete the rows of a run that is not continued. The folder of rows stays: it marks the folder as a run's."""
    for each in (path / ROWS).glob("*"):
        shutil.rmtree(each, ignore_errors=True)


def store_rows(path: Path, rows: Report, *, earlier: Report | None) -> None:
    """Store rows that belong together, all or none of them.

    Args:
        path: The folder of the report.
        rows: What was measured.
        earlier: The report that the run continues, if any.

    Raises:
        ErfscopeError: they cannot be stored; what was stored before is there.
    """
    try:
        begun = bool(rows_of(path))
        # What the run continues lies among its rows before its report is deleted: they hold the run from then on.
        for each in (rows,) if begun or earlier is None else (earlier, rows):
            _store(path, each)
        if earlier is not None and not begun:
            (path / REPORT).unlink(missing_ok=True)
    except (ErfscopeError, OSError) as error:
        with contextlib.suppress(OSError):
            (path / ROWS).rmdir()
        reason = error.__cause__ or error
        text = reason.strerror if isinstance(reason, OSError) else reason
        raise ErfscopeError(f"cannot write {rows[0].label} into {path} yet: {text}") from error


def _store(path: Path, report: Report) -> None:
    (path / ROWS).mkdir(parents=True, exist_ok=True)
    last = max((int(each.name) for each in (path / ROWS).glob("[0-9]*")), default=-1)
    name = f"{last + 1:06}"
    save_directory(report.to_json, list(report), path / ROWS / name, others=[], force=False)
