"""Files and folders that are written whole or not at all, and over nothing else unless that was asked for.

To add a format: a row here and what writes it: a table in ``show/view/table.py`` (``WRITERS``), a figure by its suffix
in matplotlib, other content in ``_content`` of ``show/save.py``. ``tests/storage/test_report.py`` writes every row;
help, messages and ``docs/reports.md`` follow."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from erfscope.core.values.errors import ErfscopeError, refuse_broken_link

Content = Literal["page", "report", "table", "figure", "maps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """One kind of file."""

    suffix: str
    content: Content
    #: What such a file holds, for the documentation.
    holds: str
    #: Of a table its name for ``--format`` and ``Report.table``; "" of everything else.
    table: str = ""


_TABLE, _FIGURE = "a table for a page or a paper (booktabs)", "the figure"
#: Every format by its suffix.
FORMATS = {
    row.suffix: row
    for row in (
        FileFormat(suffix=".html", content="page", holds="a page to look at: maps, sizes, findings"),
        FileFormat(suffix=".json", content="report", holds="the report without its maps"),
        FileFormat(
            suffix=".csv",
            content="table",
            holds="one row per result, one column per measure and one per error; `findings` has their codes",
            table="csv",
        ),
        FileFormat(suffix=".md", content="table", holds=_TABLE, table="markdown"),
        FileFormat(suffix=".tex", content="table", holds=_TABLE, table="latex"),
        FileFormat(suffix=".png", content="figure", holds=_FIGURE),
        FileFormat(suffix=".svg", content="figure", holds=_FIGURE),
        FileFormat(suffix=".pdf", content="figure", holds=_FIGURE),
        FileFormat(
            suffix=".npz",
            content="maps",
            holds="the maps, float64, each with its unit's centre and the first image; with `--unit all` the sizes of"
            " every unit, `ID.positions_r50` and `ID.positions_context_r50`",
        ),
    )
}
#: What tables are called, in the order of their suffixes.
TABLES = tuple(row.table for row in FORMATS.values() if row.table)


def suffixes(*contents: Content) -> tuple[str, ...]:
    """The suffixes of files that hold some content."""
    return tuple(suffix for suffix, row in FORMATS.items() if row.content in contents)


#: The file that marks the folder of a report.
REPORT = "report.json"
#: Folder in that of a report for the rows of a run that has not ended, a report each: see
#: :mod:`erfscope.core.answer.storage.files`.
ROWS = ".erfscope-rows"


def is_folder(path: str | Path, suffixes: Sequence[str] = tuple(FORMATS)) -> bool:
    """Whether an output is a folder: one that exists, or a name that ends with a separator or has no suffix.

    Args:
        path: The output.
        suffixes: Those that make it a file.
    """
    target = Path(path)
    if target.suffix.lower() in suffixes:
        return False
    return str(path).endswith(("/", os.sep)) or target.is_dir() or not (target.suffix or target.exists())


def check_output(
    path: str | Path, suffixes: Sequence[str] = tuple(FORMATS), *, force: bool, holding: str = REPORT
) -> None:
    """Refuse an output that cannot be written: a file with one of these suffixes, or a folder; called before anything
    is measured.

    Args:
        path: The output, as for :func:`is_folder`.
        suffixes: Likewise.
        force: Whether an output of that name is to be replaced.
        holding: As for :func:`check_directory`.

    Raises:
        ErfscopeError: it exists already, its folder cannot be written to, or its suffix is unknown.
    """
    target = Path(path)
    refuse_broken_link(target)
    with writing_to(target):
        is_directory = is_folder(path, suffixes)
    if is_directory:
        check_directory(target, suffixes, force=force, holding=holding)
    elif target.suffix.lower() in suffixes:
        check_target(target, force=force)
    else:
        known = ", ".join(suffixes)
        raise ErfscopeError(
            f"cannot write {target.name!r}; an output is a folder (end its name with /), or a file ending in {known}"
        )


def check_file(path: str | Path, suffixes: Sequence[str], *, force: bool) -> None:
    """Refuse an output that is no file with one of these suffixes, or cannot be written; called before anything is
    measured.

    Raises:
        ErfscopeError: as :func:`check_output`, which takes folders too.
    """
    target = Path(path)
    refuse_broken_link(target)
    if target.suffix.lower() not in suffixes or str(path).endswith(("/", os.sep)):
        raise ErfscopeError(f"cannot write {str(path)!r}; this output is a file ending in {', '.join(suffixes)}")
    check_target(target, force=force)


def behind_link(path: str | Path) -> Path:
    """What a link leads to, so that it stays one; a path that is no link as it is.

    Raises:
        ErfscopeError: nothing is there.
    """
    refuse_broken_link(path)
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)


def refuse_input(path: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output that is one of the inputs or a folder that holds one, by whatever name or link.

    Raises:
        ErfscopeError: it is.
    """
    output = Path(path)
    with writing_to(output):
        for source in map(Path, inputs if output.exists() else ()):
            if source.exists() and (output.samefile(source) or source.resolve().is_relative_to(output.resolve())):
                raise ErfscopeError(
                    f"the output {path} is or holds the input {source}; name another output: --force replaces no input"
                )


def refuse_inside(path: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output inside one of the inputs that are folders and count as one file each, as zarr does.

    Raises:
        ErfscopeError: it is.
    """
    with writing_to(Path(path)):
        for source in map(Path, inputs):
            if source.is_dir() and Path(path).resolve().is_relative_to(source.resolve()):
                raise ErfscopeError(f"the output {path} lies in the input {source}; name another output")


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a file that exists, or whose folder cannot be written to; called before anything is measured.

    Raises:
        ErfscopeError: the file cannot be written.
    """
    with writing_to(path):
        path.exists()  # raises if the name is too long
    if path.is_dir():
        raise ErfscopeError(f"{path} is a folder, and its suffix names a file; choose another name")
    if path.exists() and not force:
        raise ErfscopeError(f"{path} exists already; choose another name or add --force")
    _try_folder(path.parent, path.name)


def check_directory(
    path: Path, suffixes: Sequence[str] = tuple(FORMATS), *, force: bool, holding: str = REPORT
) -> None:
    """Refuse a folder that is not empty, unless it holds a report and ``force`` is set; called before anything is
    measured.

    Args:
        path: The folder.
        suffixes: Those of the files that could be written in place of a folder.
        force: Whether a report of that name is to be replaced.
        holding: The file that marks a report.

    Raises:
        ErfscopeError: the folder cannot be written.
    """
    with writing_to(path):
        path.exists()
    if path.exists() and not path.is_dir():
        raise ErfscopeError(f"{path} is a file; name a folder, or a file ending in {', '.join(suffixes)}")
    if path.is_dir():
        if path.resolve() == Path.cwd():
            raise ErfscopeError(f"{path} is the working directory; name a folder in it, such as {path / 'erf'}")
        if (path / ROWS).is_dir() and not force:
            raise ErfscopeError(
                f"{path} exists already, with a run that has not ended; add --resume to continue it, or --force to"
                " start again"
            )
        if any(path.iterdir()) and not force:
            raise ErfscopeError(f"{path} exists already; choose another name or add --force")
        if any(path.iterdir()) and not ((path / holding).is_file() or (path / ROWS).is_dir()):
            raise ErfscopeError(
                f"{path} holds files that are not an erfscope report, so --force leaves it; choose another name"
            )
    _try_folder(path if _is_filled_in_place(path, holding) else path.parent, path.name)


def _try_folder(folder: Path, name: str) -> None:
    """Refuse a folder in which no file can be made; tried with a file without a name. Of a folder that is not there
    yet, which is made with the output, the nearest one above it that is there is tried."""
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        text = f"the folder {there} cannot be written to ({error.strerror or error}); choose another place for {name}"
        raise ErfscopeError(text) from error


def _is_filled_in_place(path: Path, holding: str) -> bool:
    """Whether a report is written into a folder, which stays: one without a report, a mount point, and one that cannot
    be renamed."""
    return path.is_dir() and (path.is_mount() or not (path / holding).is_file() or not os.access(path.parent, os.W_OK))


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn the system's error on writing ``path`` into one line: no space, no permission, a name that is too long."""
    try:
        yield
    except OSError as error:
        raise ErfscopeError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def write_bytes(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file whole or not at all, and make the folders above it.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, or it cannot be written.
    """
    check_target(path, force=force)
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            _to_disk(Path(temporary))
            os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def new_directory(path: Path, *, force: bool, holding: str = REPORT) -> Iterator[Path]:
    """A folder to fill, which takes its name when the block has ended without an error; with ``force`` it replaces a
    report of that name.

    A folder without a report stays, and so does one that cannot be renamed, such as a mount point: the files are then
    moved into it.

    Raises:
        ErfscopeError: the target exists, holds something that is not a report, or cannot be written.
    """
    check_directory(path, force=force, holding=holding)
    with writing_to(path):
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        in_place = _is_filled_in_place(path, holding)
        temporary = Path(tempfile.mkdtemp(dir=path if in_place else path.parent, prefix=f".{path.name[:40]}."))
        try:
            yield temporary
            for file in temporary.iterdir():
                _to_disk(file)
            if in_place:
                _fill(path, temporary, holding)
            else:
                temporary.chmod(path.stat().st_mode & 0o7777 if path.is_dir() else 0o777 & ~_umask())
                take_place(temporary, path, holding)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _to_disk(file: Path) -> None:
    """Write a file to the disk before it gets its name: otherwise it may be empty after a power failure."""
    if file.is_file():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def take_place(new: Path, path: Path, holding: str = REPORT) -> None:
    """Give ``new`` the name ``path``. The old folder has it until then; where the system cannot exchange two names, it
    is filled if it has the rows of the new report, else put aside first, and back if that fails."""
    if not path.is_dir():
        new.replace(path)
        return
    if _exchanged(new, path):
        shutil.rmtree(new, ignore_errors=True)
        return
    if (path / ROWS).is_dir():
        _fill(path, new.rename(path / new.name), holding)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}."))
    old = path.rename(aside / "old")
    try:
        new.replace(path)
    except BaseException:
        old.rename(path)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once, as Linux can on most file systems; whether it did."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    names = os.fsencode(one), os.fsencode(other)
    # From linux/fcntl.h: AT_FDCWD, and RENAME_EXCHANGE of linux/fs.h.
    return exchange is not None and exchange(-100, names[0], -100, names[1], 2) == 0


def _fill(path: Path, new: Path, holding: str) -> None:
    """Move the files of ``new``, a folder in ``path``, up into it; the old files are put aside first, and back if that
    fails.

    The file that marks a report leaves first and arrives last, so that it never stands beside the files of another
    report. The rows that a report is made of stay until it is there."""
    aside = Path(tempfile.mkdtemp(dir=path, prefix=new.name))
    kept = (new, aside, path / ROWS)
    old = sorted((file for file in path.iterdir() if file not in kept), key=lambda file: file.name != holding)
    fresh = sorted(new.iterdir(), key=lambda file: file.name == holding)
    try:
        for file in old:
            file.rename(aside / file.name)
        for file in fresh:
            file.rename(path / file.name)
    except BaseException:
        for file in fresh:
            if not file.exists():
                (path / file.name).rename(file)
        for file in aside.iterdir():
            file.rename(path / file.name)
        aside.rmdir()
        raise
    if (path / ROWS).is_dir():
        # At once, since rows that are there in part would be continued.
        (path / ROWS).rename(aside / ROWS)
    shutil.rmtree(aside, ignore_errors=True)
    new.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
