"""One JSON line per finished model: what a run that is killed has left, and the next one goes on with."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from erfscope.errors import EnvironmentFailure, ErfscopeError, ErfWarning
from erfscope.isolation.entry import checked_line
from erfscope.results.json_values import parse

NAME, SCHEMA = "models.jsonl", "erfscope.models/1"


class Journal:
    """A file whose first line says what is asked, and every other one holds a model's results; of several of one model
    the last counts.

    Args:
        folder: Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        #: The first line, as JSON values; None until there is one.
        self.asked: dict[str, Any] | None = None
        #: Lines of the finished models, by label, as JSON values.
        self.models: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from going on with it; where the process dies, the system lets go.

        Raises:
            ErfscopeError: somebody else has it, or it cannot be made.
        """
        import fcntl

        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ErfscopeError(f"cannot write {self.path}: {error.strerror or error}; choose another place") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ErfscopeError(
                f"another run is filling {self.path.parent} at this moment; wait for its end, or name another folder"
            ) from None
        except OSError as error:
            text = (
                f"{self.path.parent} cannot be locked ({error.strerror or error}): let no other run fill it at the same"
                " time"
            )
            warnings.warn(text, ErfWarning, stacklevel=2)
        try:
            yield
        finally:
            os.close(handle)

    def read(self) -> None:
        """Read what there is: every line that was written to its end, whatever else a full disk or a power cut has
        left.

        Raises:
            ErfscopeError: it cannot be read, or is damaged.
        """
        lines = self._whole_lines()
        try:
            first: Any = parse(lines[0]) if lines else None
            if lines and first.get("schema") != SCHEMA:
                raise ValueError(f"its schema is {str(first.get('schema'))[:40]!r}")
            others = [entry for line in lines[1:] if (entry := _parsed(line)) is not _TORN]
            self.asked = first
            self.models = {entry["label"]: entry for entry in map(checked_line, others)}
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            reason = f"{type(error).__name__}: {str(error)[:120]}"
            raise ErfscopeError(f"{self.path} is damaged ({reason}); begin anew in another folder") from error
        torn = len(lines) - 1 - len(others) if lines else 0
        if torn:
            text = (
                f"{self.path} has {torn} line{'s' * (torn != 1)} that no run has written to the end; those models are"
                " measured again"
            )
            warnings.warn(text, ErfWarning, stacklevel=2)

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Write the first line, or see that it asks for the same.

        Args:
            asked: What holds for all models, as JSON values.

        Raises:
            ErfscopeError: it was begun with something else.
        """
        if self.asked is None:
            self.asked = {"schema": SCHEMA, **asked}
            self._append(self.asked)
        for name, value in asked.items():
            if self.asked.get(name) != value:
                then, now = _unlike(self.asked.get(name), value)
                unlike = f"{name.replace('_', ' ')} ({_short(then)} then, {_short(now)} now)"
                raise ErfscopeError(
                    f"{self.path.parent} was begun with another {unlike}; ask as before, or begin anew in another"
                    " folder"
                )

    def add(self, entry: Mapping[str, Any]) -> None:
        """Note a finished model, for good."""
        self.models[entry["label"]] = dict(entry)
        self._append(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Write one line, wholly or not at all.

        Raises:
            EnvironmentFailure: there is no space for it, say; what was written before is as it was.
        """
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                end = os.fstat(handle).st_size
                if end and os.pread(handle, 1, end - 1) != b"\n":
                    # What is left of a line that could not be undone.
                    line = b"\n" + line
                _write_or_undo(handle, line, end)
            finally:
                os.close(handle)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write {self.path}: {error.strerror or error}; what is finished is kept: make room, and go on"
                " with --resume"
            ) from error

    def _whole_lines(self) -> list[str]:
        """The lines that were written to their end; the rest of the last one is cut off."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ErfscopeError(f"cannot read {self.path}: {error.strerror or error}") from error
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with contextlib.suppress(OSError):
                os.truncate(self.path, len(whole))
        return [line.decode(errors="replace") for line in whole.split(b"\n")[:-1]]


def _write_or_undo(handle: int, content: bytes, end: int) -> None:
    """Write all of it at the end of a file and onto the disk, or leave the file as it was.

    Args:
        handle: The file, open for appending.
        content: What is written; the system may take less than that at a time.
        end: Where the file ends now.

    Raises:
        OSError: it could not be written.
    """
    try:
        left = memoryview(content)
        while left:
            count = os.write(handle, left)
            if count == 0:
                raise OSError(errno.EIO, "the system takes no more bytes")
            left = left[count:]
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
            os.fsync(handle)
        raise


def _unlike(then: Any, now: Any) -> tuple[Any, Any]:
    """What differs of two tables, else both as they are."""
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        return then, now
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return {name: then.get(name) for name in names}, {name: now.get(name) for name in names}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


#: What a line is that was not written to its end.
_TORN = object()


def _parsed(line: str) -> Any:
    """A line as JSON values; :data:`_TORN` where it is none."""
    try:
        return parse(line)
    except json.JSONDecodeError:
        return _TORN
