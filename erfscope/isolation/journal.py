"""One JSON line per finished model: what a run that is killed has left, and the next one goes on with."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erfscope.errors import ErfscopeError

NAME, SCHEMA = "models.jsonl", "erfscope.models/1"


class Journal:
    """A file whose first line says what is asked, and every other one holds a model's results.

    Args:
        folder: Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        #: Results of the finished models, by label, as JSON values.
        self.models: dict[str, dict[str, Any]] = {}

    def open(self, asked: Mapping[str, Any]) -> None:
        """Go on with a journal, or begin one.

        Args:
            asked: What holds for all models, as JSON values.

        Raises:
            ErfscopeError: it cannot be read, or was asked for with other settings.
        """
        lines = self._whole_lines()
        if not lines:
            self._append({"schema": SCHEMA, **asked})
            return
        try:
            first, *others = [json.loads(line) for line in lines]
            if first.get("schema") != SCHEMA:
                raise ValueError(f"its schema is {first.get('schema')!r}")
            self.models = {entry["label"]: entry for entry in others}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ErfscopeError(f"{self.path} is damaged ({str(error)[:80]}); begin anew in another folder") from error
        for name, value in asked.items():
            if first.get(name) != value:
                unlike = f"{name.replace('_', ' ')} ({_short(first.get(name))} then, {_short(value)} now)"
                raise ErfscopeError(f"{self.path.parent} was begun with another {unlike}; ask as before, or begin anew in another folder")

    def add(self, entry: Mapping[str, Any]) -> None:
        """Note a finished model, for good."""
        self.models[entry["label"]] = dict(entry)
        self._append(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # One call, so that a line is there whole; what a power cut leaves of one is cut off by the next run.
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)

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
        return whole.decode(errors="replace").splitlines()


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
