"""What is put around other people's code while it builds a model: fixed seeds, silence, and one line where it fails."""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
import torch

from erfscope.errors import ErfscopeError
from erfscope.failures.exits import ModelExitError, contain_exits
from erfscope.failures.plain import is_short, plain_line
from erfscope.hosting.random_states import DRAWING, same_random_numbers


@contextlib.contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and the standard library inside the block, one thread at a time; put them back after it."""
    with DRAWING, same_random_numbers():
        # Not torch.manual_seed: in a process that has not used its GPUs yet, that would seed them for good.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Inside the block the model libraries neither warn nor log; what matters of it is in the result."""
    loggers = [
        logging.getLogger(name) for name in ("timm", "transformers", "huggingface_hub", "httpx", "httpx2", "torchvision", "torch.export")
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


def first_line(error: BaseException) -> str:
    """An exception as one line: its type and what it says in plain words; the words alone where space or memory was short."""
    text, name = plain_line(error), type(error).__name__
    if isinstance(error, ModelExitError):
        return text
    return text if text.startswith(name) or is_short(error) else f"{name}: {text}"


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
            raise ErfscopeError(f"torch and torchvision do not belong together ({first_line(error)}); {fix} (or .../whl/cu126)") from error
        raise ErfscopeError(f"{name} cannot be imported: {first_line(error)}") from error


@contextlib.contextmanager
def errors_as_one_line(what: str, options: Mapping[str, object] | None = None, *, model: str = "") -> Iterator[None]:
    """Turn whatever is raised inside the block into one line; the original stays behind it for ``-v``.

    Args:
        what: What was tried, to begin the line with.
        options: With which options, to be named after it.
        model: What was tried with, if the line begins with that.

    Raises:
        ErfscopeError: anything was raised, a script's ``sys.exit`` and its own KeyboardInterrupt included; a real Ctrl-C passes.
    """
    try:
        with contain_exits():
            yield
    except ErfscopeError:
        raise
    except Exception as error:
        listed = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        raise ErfscopeError(f"{what}{listed}: {first_line(error)}", model=model) from error
