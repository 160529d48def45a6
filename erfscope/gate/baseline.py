"""The baseline file: sorted JSON that people can read, merge and commit."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from erfscope.errors import ErfscopeError
from erfscope.gate.entry import BaselineEntry
from erfscope.results.json_values import convert, parse
from erfscope.storage.writing import write_bytes

SCHEMA = "erfscope.baseline/1"
#: The default name of a baseline.
FILE = "erf-baseline.json"


class StoredBaseline(Struct, frozen=True, kw_only=True):
    """The file's content; each entry is read by itself, as a :class:`~erfscope.gate.entry.BaselineEntry`."""

    schema: str
    entries: Mapping[str, Mapping[str, Any]]


def read(path: Path) -> dict[str, BaselineEntry]:
    """Every entry of a baseline by its name.

    Args:
        path: The file; one that does not exist has no entries.

    Raises:
        ErfscopeError: it cannot be read, holds a merge conflict, is damaged, or is of another version.
    """
    try:
        if path.exists() and not path.is_file():
            # A device may have no end.
            raise OSError("it is not a file")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ErfscopeError(
            f"cannot read the baseline {path}: {str(error)[:120]}; name another with --baseline"
        ) from error
    if any(line.startswith("<<<<<<<") for line in text.splitlines()):
        raise ErfscopeError(
            f"the baseline {path} holds a merge conflict; take either side of it, then measure again with --update"
        )
    try:
        document = parse(text, object_pairs_hook=_once)
        _refuse_other(document, path)
        entries = convert(document, StoredBaseline, "the baseline").entries
        found = {name: convert(entry, BaselineEntry, f"entry {name[:40]!r}") for name, entry in entries.items()}
        if incomplete := [name for name, entry in found.items() if entry.structure is None]:
            raise ValueError(f"entry {incomplete[0][:40]!r} has no structure")
        return found
    except (ValueError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: {str(error)[:120]}"
        raise ErfscopeError(
            f"the baseline {path} is damaged ({what}); restore it, or delete it and check once more"
        ) from error


def update(path: Path, entries: Mapping[str, BaselineEntry]) -> None:
    """Put entries into a baseline, beside those of other names that it holds when it is written.

    The file is there whole or not at all, and of two processes that update it neither loses what the other wrote.

    Args:
        path: The file; made where it does not exist.
        entries: By name. None of them may be unusable.

    Raises:
        ErfscopeError: the file cannot be read or written.
        ValueError: an entry without anything to compare with.
    """
    for name, entry in entries.items():
        if entry.unusable is not None or entry.structure is None:
            raise ValueError(f"{name!r} holds nothing that could be compared with: {entry.unusable}")
    target = path.resolve()
    with _locked(target):
        write_bytes(target, baseline_bytes({**read(target), **entries}), force=True)


def baseline_bytes(entries: Mapping[str, BaselineEntry]) -> bytes:
    """The text of a baseline: keys sorted, one value per line, lists of numbers on one line."""
    document = {"schema": SCHEMA, "entries": {name: entry.to_json() for name, entry in entries.items()}}
    return (_text(document) + "\n").encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are unique: a key that is there twice comes from a merge that kept both sides."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _text(value: Any, indent: int = 0) -> str:
    """JSON with one line per value of an object; a list, which is one value in a merge, stays on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = " " * (indent + 1)
    lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_text(value[key], indent + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def _refuse_other(document: Any, path: Path) -> None:
    found = document.get("schema") if isinstance(document, dict) else None
    if found == SCHEMA:
        return
    family, _, version = str(found).rpartition("/")
    if family != SCHEMA.rpartition("/")[0] or not version.isdigit():
        raise ErfscopeError(
            f"{path} is not an erfscope baseline: its schema is {found!r}, not {SCHEMA!r}; name another with --baseline"
        )
    newer = int(version) > int(SCHEMA.rpartition("/")[2])
    fix = (
        "install a newer erfscope"
        if newer
        else "its numbers meant something else: delete it, and check once more to write a new one"
    )
    raise ErfscopeError(f"the baseline {path} is of schema {found}, and this erfscope reads {SCHEMA}; {fix}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from updating a file, with a lock that the system takes back however this process ends.

    On the folder, so that no lock file is left in it; where folders cannot be locked, on a file among the temporary
    ones."""
    try:
        if sys.platform == "win32":
            import hashlib
            import msvcrt

            name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
            handle = os.open(Path(tempfile.gettempdir()) / f"erfscope-{name}.lock", os.O_RDWR | os.O_CREAT)
            msvcrt.locking(handle, msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            handle = os.open(path.parent, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise ErfscopeError(f"cannot lock {path.parent} to update {path.name}: {error.strerror or error}") from error
    try:
        yield
    finally:
        os.close(handle)
