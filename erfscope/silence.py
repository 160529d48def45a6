"""Keep the warnings and logs of libraries still."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Keep Python's warnings, and the loggers of these names and below them, still inside the block."""
    known = [*map(logging.getLogger, names), *logging.root.manager.loggerDict.values()]
    heads = tuple(f"{name}." for name in names)
    loggers = {each for each in known if isinstance(each, logging.Logger) and f"{each.name}.".startswith(heads)}
    levels = {each: each.level for each in loggers}
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
