"""Keep the warnings and logs of libraries still."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Keep Python's warnings, and the loggers of these names and below them, still inside the block."""
    heads = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    below = tuple(f"{name}." for name in names)
    known = [each for name, each in [*logging.root.manager.loggerDict.items()] if name.startswith(below)]
    silent = [each for each in known if isinstance(each, logging.Logger) and not each.disabled]
    for each in silent:  # their levels are their own; to set one takes longer
        each.disabled = True
    for head in heads:
        head.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each in silent:
            each.disabled = False
        for head, level in heads.items():
            head.setLevel(level)
