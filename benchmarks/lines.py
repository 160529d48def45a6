"""One JSON line per model, after a first one that says what is asked: what a run that has ended, or was killed, leaves
to the next one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erfscope import ErfscopeError


class Lines:
    """A file of such lines.

    Args:
        path: The file; made if there is none.
        asked: What holds for all models, as JSON values.

    Raises:
        ErfscopeError: it is damaged, or was begun with something else.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path = path
        #: The lines by model.
        self.models: dict[str, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        try:
            first, *others = [json.loads(line) for line in whole.splitlines()] or [None]
            self.models = {line["model"]: line for line in others}
        except (ValueError, KeyError, TypeError) as error:
            raise ErfscopeError(f"{path} is damaged; begin anew in another folder") from error
        if first is None:
            self._append(asked)
        elif first != asked:
            raise ErfscopeError(
                f"{path} was begun with {first}, and not with {dict(asked)}; ask as before, or name another folder"
            )

    def add(self, line: Mapping[str, Any]) -> None:
        """Note a model, for good."""
        self.models[line["model"]] = dict(line)
        self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        # One call, so that a line is there whole; what was not written to its end is cut off by the next run.
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(line, allow_nan=False) + "\n").encode())
        finally:
            os.close(handle)
