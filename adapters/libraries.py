"""Import model libraries, and silence their warnings and logs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from types import ModuleType

from erfscope.errors import ErfscopeError
from erfscope.model_errors import first_line


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Silence the warnings and logs of model libraries inside the block; the result holds what matters of them."""
    loggers = [
        logging.getLogger(name)
        for name in ("timm", "transformers", "huggingface_hub", "httpx", "httpx2", "torchvision", "torch.export")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def import_library(name: str) -> ModuleType:
    """Import a model library.

    Raises:
        ErfscopeError: it cannot be imported; with the fix where torch and torchvision do not belong together.
    """
    try:
        with silence_libraries():
            return importlib.import_module(name)
    except (RuntimeError, ImportError, OSError, AttributeError) as error:
        text = str(error)
        if "torchvision" in text or "undefined symbol" in text:
            fix = "install both from one index: pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu"
            raise ErfscopeError(
                f"torch and torchvision do not belong together ({first_line(error)}); {fix} (or .../whl/cu126)"
            ) from error
        raise ErfscopeError(f"{name} cannot be imported: {first_line(error)}") from error
