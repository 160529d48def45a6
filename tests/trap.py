"""A pickle that shows whether it was opened with its code."""

from __future__ import annotations

import os
from pathlib import Path


class Trap:
    """Makes a folder if it is ever unpickled with its code."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.target),)
