"""Import model libraries, and silence their warnings and logs."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from types import ModuleType

from erfscope.core.system.model_errors import first_line
from erfscope.core.system.silence import silenced
from erfscope.core.values.errors import ErfscopeError


def silence_libraries() -> AbstractContextManager[None]:
    """Silence the warnings and logs of model libraries inside a block; the result holds what matters of them."""
    return silenced("timm", "transformers", "huggingface_hub", "httpx", "httpx2", "torchvision", "torch.export")


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
