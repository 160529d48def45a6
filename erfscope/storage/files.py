"""Reports on disk: written whole or not at all, never over something else unless told to."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from erfscope.errors import ErfscopeError, refuse_broken_link
from erfscope.results.json_values import convert, parse
from erfscope.results.result import Result
from erfscope.storage.documents import StoredReport
from erfscope.storage.json_format import SCHEMA, result_from_json
from erfscope.storage.positions import position_arrays
from erfscope.storage.sums import part_arrays

REPORT = "report.json"
#: Folder in that of a report for the rows of a run that has not ended, a report each: see :mod:`erfscope.storage.rows`.
ROWS = ".erfscope-rows"
#: Files that a figure, and that a table goes into; the format of each table.
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
TABLE_SUFFIXES = {".csv": "csv", ".md": "markdown", ".tex": "latex"}
#: What readers of archives and arrays raise on damaged files.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    zipfile.BadZipFile,
    zlib.error,
)
#: Bytes that the arrays of one stored result may have: ten groups of 3600 x 3600 cells. A small file may claim to hold
#: any number.
LARGEST_ARRAYS = 1 << 30


def check_output(path: str | Path, suffixes: Sequence[str], *, force: bool, holding: str = REPORT) -> None:
    """Refuse an output that cannot be written: a file with one of these suffixes, or a folder; called before anything
    is measured.

    Args:
        path: The output, which is a folder if its name ends with a separator.
        suffixes: What names of files may end in, such as ".json".
        force: Whether an output of that name is to be replaced.
        holding: As for :func:`check_directory`.

    Raises:
        ErfscopeError: it exists already, its folder does not, or its suffix is unknown.
    """
    target = Path(path)
    refuse_broken_link(target)
    suffix = target.suffix.lower()
    with _one_line(target):
        is_file = not str(path).endswith(("/", os.sep)) and not target.is_dir() and (bool(suffix) or target.exists())
    if suffix in suffixes:
        check_target(target, force=force)
    elif is_file:
        known = ", ".join(suffixes)
        raise ErfscopeError(
            f"cannot write {target.name!r}; an output is a folder (end its name with /), or a file ending in {known}"
        )
    else:
        check_directory(target, force=force, holding=holding)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a file that exists, or whose folder does not; called before anything is measured.

    Raises:
        ErfscopeError: the file cannot be written.
    """
    with _one_line(path):
        path.exists()  # raises where the name is too long
    if path.is_dir():
        raise ErfscopeError(f"{path} is a folder, and its suffix names a file; choose another name")
    if path.exists() and not force:
        raise ErfscopeError(f"{path} exists already; choose another name or add --force")
    _try_folder(path.parent, path.name)


def check_directory(path: Path, *, force: bool, holding: str = REPORT) -> None:
    """Refuse a folder that holds something, unless that is a report and ``force`` is set; called before anything is
    measured.

    Args:
        path: The folder.
        force: Whether a report of that name is to be replaced.
        holding: The file by which a report is known.

    Raises:
        ErfscopeError: the folder cannot be written.
    """
    with _one_line(path):
        path.exists()
    if path.exists() and not path.is_dir():
        raise ErfscopeError(
            f"{path} is a file; name a folder, or a file ending in .html, .json, .csv, .md, .tex, .png, .svg, .pdf or"
            " .npz"
        )
    if path.is_dir():
        if path.resolve() == Path.cwd():
            raise ErfscopeError(f"{path} is the working directory; name a folder in it, such as {path / 'erf'}")
        if (path / ROWS).is_dir() and not force and not (path / holding).is_file():
            raise ErfscopeError(
                f"{path} exists already, with a run that has not ended; add --resume to go on with it, or --force to"
                " begin anew"
            )
        if any(path.iterdir()) and not force:
            raise ErfscopeError(f"{path} exists already; choose another name or add --force")
        if any(path.iterdir()) and not ((path / holding).is_file() or (path / ROWS).is_dir()):
            raise ErfscopeError(
                f"{path} holds what is not an erfscope report, so --force will not replace it; choose another name"
            )
    _try_folder(path if _is_filled_in_place(path) else path.parent, path.name)


def _try_folder(folder: Path, name: str) -> None:
    """Refuse a folder in which no file can be made: by making one without a name."""
    if not folder.is_dir():
        raise ErfscopeError(f"the folder {folder} for {name} does not exist; create it first")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        text = f"the folder {folder} cannot be written to ({error.strerror or error}); choose another place for {name}"
        raise ErfscopeError(text) from error


def _is_filled_in_place(path: Path) -> bool:
    """Whether a folder stays when a report is written to it: an empty one, one that holds rows, a mount point, and one
    that its own folder does not let go."""
    if not path.is_dir():
        return False
    holds_nothing = not any(path.iterdir()) or (path / ROWS).is_dir()
    return path.is_mount() or holds_nothing or not os.access(path.parent, os.W_OK)


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Say in one line what the system said of writing ``path``: no space, no permission, a name that is too long."""
    try:
        yield
    except OSError as error:
        raise ErfscopeError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def write_bytes(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write a file in one step: it is there whole or not at all.

    Raises:
        ErfscopeError: it exists and ``force`` is not set, or it cannot be written.
    """
    check_target(path, force=force)
    with _one_line(path):
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
def new_directory(path: Path, *, force: bool = False, holding: str = REPORT) -> Iterator[Path]:
    """A folder to fill that takes its name only when the block has ended well; with ``force`` it replaces a report of
    that name.

    An empty folder stays, as does one that cannot be renamed, such as a mount point: the files are moved into it when
        the block has ended.

    Raises:
        ErfscopeError: the target exists, holds something that is not a report, or cannot be written.
    """
    check_directory(path, force=force, holding=holding)
    with _one_line(path):
        path = path.resolve()
        in_place = _is_filled_in_place(path)
        temporary = Path(tempfile.mkdtemp(dir=path if in_place else path.parent, prefix=f".{path.name[:40]}."))
        try:
            yield temporary
            for file in temporary.iterdir():
                _to_disk(file)
            if in_place:
                _fill(path, temporary, holding)
            else:
                temporary.chmod(0o777 & ~_umask())
                _take_place(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _to_disk(file: Path) -> None:
    """Have the system write a file to the disk before it gets its name: else it may be empty there after a power
    failure."""
    if file.is_file():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _take_place(new: Path, path: Path) -> None:
    """Give ``new`` the name ``path``; what had it is put aside first, and back if that fails."""
    if not path.is_dir():
        new.replace(path)
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


def _fill(path: Path, new: Path, holding: str) -> None:
    """Move the files of ``new``, a folder in ``path``, into that; what was there is put aside first, and back if that
    fails.

    The file by which a report is known goes first and comes last, so that there is never one beside the files of
    another. The rows that it is made of stay until it is there."""
    aside = Path(tempfile.mkdtemp(dir=path, prefix=new.name))
    kept = (new, aside, path / ROWS)
    old = sorted((each for each in path.iterdir() if each not in kept), key=lambda each: each.name != holding)
    fresh = sorted(new.iterdir(), key=lambda each: each.name == holding)
    try:
        for each in old:
            each.rename(aside / each.name)
        for each in fresh:
            each.rename(path / each.name)
    except BaseException:
        for each in fresh:
            if not each.exists():
                (path / each.name).rename(each)
        for each in aside.iterdir():
            each.rename(path / each.name)
        aside.rmdir()
        raise
    shutil.rmtree(path / ROWS, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
    new.rmdir()


def map_bytes(results: list[Result]) -> bytes:
    """Maps as .npz: one array per result, named by its id, with the unit's centre beside it, the first image and the
    units' sizes where there are any."""
    arrays: dict[str, Any] = {}
    for result in results:
        if result.map is not None:
            arrays[result.id] = result.map.values
            arrays[f"{result.id}.center_px"] = np.array(result.map.center_px)
            if result.picture is not None:
                arrays[f"{result.id}.picture"] = np.asarray(result.picture)
        if result.positions is not None:
            arrays |= {f"{result.id}.{name}": values for name, values in position_arrays(result.positions).items()}
        if result.part is not None:
            arrays |= {f"{result.id}.{name}": values for name, values in part_arrays(result.part).items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def report_bytes(document: dict[str, Any]) -> bytes:
    """JSON text, indented, strictly valid."""
    # Piece by piece: as one text, and the list of its pieces, a report of hundreds of models would be there four times.
    found = io.BytesIO()
    for piece in json.JSONEncoder(indent=1, allow_nan=False).iterencode(document):
        found.write(piece.encode())
    found.write(b"\n")
    return found.getvalue()


def save_directory(
    document: Callable[[dict[str, str]], dict[str, Any]],
    results: list[Result],
    path: Path,
    *,
    others: Iterable[tuple[str, bytes]],
    force: bool,
) -> None:
    """Write ``report.json``, a .npz per map, and ``others``, such as figures by their file names, into a new folder."""
    with new_directory(path, force=force) as folder:
        digests = {}
        for result in results:
            if result.map is not None or result.part is not None or result.positions is not None:
                content = map_bytes([result])
                (folder / f"{result.id}.npz").write_bytes(content)
                digests[result.id] = hashlib.sha256(content).hexdigest()
        for name, content in others:
            (folder / name).write_bytes(content)
        (folder / REPORT).write_bytes(report_bytes(document(digests)))


def read_document(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """A stored report and its results; maps are read where they lie beside it.

    Raises:
        ErfscopeError: no such file, or not a report of this version, or a map that is not the stored one.
    """
    refuse_broken_link(path)
    try:
        file = path / REPORT if path.is_dir() else path
        if file.exists() and not file.is_file():
            # A device may have no end.
            raise ErfscopeError(f"cannot read {file}: it is no file; name a report.json or a folder that holds one")
        document = parse(file.read_text(encoding="utf-8"))
        if (schema := document.get("schema")) != SCHEMA:
            text = (
                f"{file} is not an erfscope report of this version: its schema is {str(schema)[:60]!r}, not {SCHEMA!r}"
            )
            raise ErfscopeError(f"{text}; measure again and store the result")
        versions = convert(document, StoredReport, "report").environment["versions"]
        if not document["results"] or not isinstance(versions, dict):
            raise ValueError("it has no results, or does not say with which versions they were measured")
        results = [result_from_json(entry, _read_arrays(file, entry)) for entry in document["results"]]
        if len({result.id.lower() for result in results}) < len(results):
            raise ValueError("two results have one id")
        return document, results
    except OSError as error:
        raise ErfscopeError(
            f"cannot read {path}: {error.strerror or error}; name a report.json or a folder that holds one"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ErfscopeError(
            f"{path} is damaged ({type(error).__name__}: {str(error)[:120]}); measure again and store the result"
        ) from error


def _read_arrays(report: Path, entry: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What was stored beside one result: its map under "map", its "picture", and a shard's sums; nothing where there is
    no such file."""
    name = entry.get("map_file")
    if not name:
        return {}
    if Path(name).name != name:
        raise ValueError(f"map file {name!r} is not a plain file name")
    file = report.parent / name
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != entry["map_sha256"]:
                raise ValueError("its sha256 is not the one in the report")
            return _arrays_of(opened, entry["id"])
    except DAMAGED as error:
        raise ErfscopeError(
            f"{file} is damaged ({type(error).__name__}: {str(error)[:80]}); measure again and store the result"
        ) from error


def _arrays_of(file: BinaryIO, result_id: str) -> dict[str, np.ndarray[Any, Any]]:
    with zipfile.ZipFile(file) as archive:
        # Refused by what the archive says of itself, which unpacking holds it to: no more than that is ever read.
        if sum(member.file_size for member in archive.infolist()) > LARGEST_ARRAYS:
            raise ValueError(f"it holds more than {LARGEST_ARRAYS >> 20} MiB")
        names = [member.filename.removesuffix(".npy") for member in archive.infolist()]
        own = {
            name.removeprefix(f"{result_id}."): name
            for name in names
            if name == result_id or name.startswith(f"{result_id}.")
        }
        found = {key: _array(archive.read(f"{name}.npy")) for key, name in own.items()}
    if result_id in found:
        found["map"] = np.asarray(found.pop(result_id), dtype=np.float64)
    return found


def _array(content: bytes) -> np.ndarray[Any, Any]:
    """An array of plain numbers from the bytes of a .npy file. Its header may claim any shape, and memory is taken
    before it is filled."""
    buffer = io.BytesIO(content)
    version = np.lib.format.read_magic(buffer)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(buffer)
    if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != len(content) - buffer.tell():
        raise ValueError(f"an array of {dtype} {shape} does not have {len(content) - buffer.tell()} bytes")
    buffer.seek(0)
    array: np.ndarray[Any, Any] = np.load(buffer, allow_pickle=False)
    return array


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
