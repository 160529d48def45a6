"""Reports as files: a folder with maps beside the JSON, or the bytes of one file; and back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from erfscope.core.answer.comparability import place_of
from erfscope.core.answer.json_values import from_json
from erfscope.core.answer.report import Report, unique_ids
from erfscope.core.answer.result import Result
from erfscope.core.answer.storage.documents import StoredReport
from erfscope.core.answer.storage.json_format import SCHEMA, part_arrays, position_arrays, result_from_json
from erfscope.core.answer.storage.writing import REPORT, ROWS, new_directory
from erfscope.core.values.errors import ErfscopeError, refuse_broken_link

#: Errors of readers of archives and arrays on damaged files.
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
#: Most bytes of the arrays of one stored result: ten groups of 3600 x 3600 cells. A small file may claim any number.
LARGEST_ARRAYS = 1 << 30


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
    text = io.BytesIO()
    for piece in json.JSONEncoder(indent=1, allow_nan=False).iterencode(document):
        text.write(piece.encode())
    text.write(b"\n")
    return text.getvalue()


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


def _read_rows(path: Path) -> Report:
    """The rows of a run that has not ended; of one that was measured again the last one counts."""
    reports = [_read_report(folder) for folder in rows_of(path)]
    last = {place_of(row): row for report in reports for row in report}
    return replace(reports[-1], results=unique_ids([*last.values()]))


def _read_report(path: Path) -> Report:
    """One stored report; maps are read where they lie beside it.

    Raises:
        ErfscopeError: no such file, or not a report of this version, or a map that is not the stored one.
    """
    refuse_broken_link(path)
    try:
        file = path / REPORT if path.is_dir() else path
        if file.exists() and not file.is_file():
            # A device may have no end.
            raise ErfscopeError(f"cannot read {file}: it is no file; name a report.json or a folder that holds one")
        document = from_json(file.read_bytes())
        if (schema := document.get("schema")) != SCHEMA:
            text = (
                f"{file} is not an erfscope report of this version: its schema is {str(schema)[:60]!r}, not {SCHEMA!r}"
            )
            raise ErfscopeError(f"{text}; measure again and store the result")
        versions = from_json(document, StoredReport, "report").environment["versions"]
        if not document["results"] or not isinstance(versions, dict):
            raise ValueError("it has no results, or does not say with which versions they were measured")
        results = [result_from_json(entry, _read_arrays(file, entry)) for entry in document["results"]]
        if len({result.id.lower() for result in results}) < len(results):
            raise ValueError("two results have one id")
        return Report(results=tuple(results), settings=document["settings"], environment=document["environment"])
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or error}" if path.exists() else f"{path} does not exist"
        raise ErfscopeError(f"{what}; name a report.json or a folder that holds one") from error
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ErfscopeError(
            f"{path} is damaged or of another version ({type(error).__name__}: {str(error)[:120]}); measure again and"
            " store the result"
        ) from error


def _read_arrays(report: Path, entry: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays beside one result: its map under "map", its "picture", and a shard's sums; none if there is no such
    file."""
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
            return _arrays_of(opened, entry)
    except DAMAGED as error:
        raise ErfscopeError(
            f"{file} is damaged ({type(error).__name__}: {str(error)[:80]}); measure again and store the result"
        ) from error


def _arrays_of(file: BinaryIO, entry: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    result_id = entry["id"]
    with zipfile.ZipFile(file) as archive:
        # Refused by what the archive says of itself, which unpacking holds it to: no more than that is ever read.
        if sum(member.file_size for member in archive.infolist()) > LARGEST_ARRAYS:
            raise ValueError(f"it holds more than {LARGEST_ARRAYS >> 20} MiB")
        own = {
            member.filename.removesuffix(".npy").removeprefix(result_id).removeprefix(".") or "map": member
            for member in archive.infolist()
            if member.filename == f"{result_id}.npy" or member.filename.startswith(f"{result_id}.")
        }
        for name, member in own.items():
            _check_header(archive, member, tuple(entry["trf"]["reference_px"]) if name == "map" else None)
        return {name: np.load(io.BytesIO(archive.read(member)), allow_pickle=False) for name, member in own.items()}


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, of_map: tuple[int, ...] | None) -> None:
    """Refuse what is no array of plain numbers, or no map of the size in the report, before it is unpacked. A header
    may claim any shape, and memory is taken before it is filled."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        left = member.file_size - file.tell()
    if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"an array of {dtype} {shape} does not have {left} bytes")
    if of_map is not None and (shape != of_map or dtype != np.float64):
        raise ValueError(f"its map is {dtype} of {shape}, and the report's is float64 of {of_map}")


def is_report(path: Path) -> bool:
    """Whether a folder holds a report, or rows of one."""
    return (path / REPORT).is_file() or bool(rows_of(path))


def rows_of(path: Path) -> list[Path]:
    """The folders of rows in that of a report, in the order in which they were stored."""
    return sorted(report.parent for report in (path / ROWS).glob(f"[0-9]*/{REPORT}"))


def begin_rows(path: Path) -> None:
    """Delete the rows of a run that is not continued. The folder of rows stays: it marks the folder as a run's."""
    for row in (path / ROWS).glob("*"):
        shutil.rmtree(row, ignore_errors=True)


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
        first = _next_number(path)
        # What the run continues lies among its rows before its report is deleted: they hold the run from then on.
        for number, report in enumerate((rows,) if first or earlier is None else (earlier, rows), first):
            save_directory(report.to_json, list(report), path / ROWS / f"{number:06}", others=[], force=False)
        if earlier is not None and not first:
            (path / REPORT).unlink(missing_ok=True)
    except (ErfscopeError, OSError) as error:
        with contextlib.suppress(OSError):
            (path / ROWS).rmdir()
        reason = error.__cause__ or error
        text = reason.strerror if isinstance(reason, OSError) else reason
        raise ErfscopeError(f"cannot write {rows[0].label} into {path} yet: {text}") from error


def _next_number(path: Path) -> int:
    """The number of the row that is stored next: it takes one listing, however many there are."""
    try:
        return max((int(row.name) + 1 for row in os.scandir(path / ROWS) if row.name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0
