"""The private names of timm that erfscope uses; no other module names them.

``_hub.hf_hub_download`` is in timm 1.0.12 to 1.0.31, ``_hub.load_model_config_from_path`` from 1.0.16 on and
``_traits`` from 1.0.26 on. What a release lacks is refused, or left out."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from erfscope.core.values.errors import ErfscopeError


def load_config_of_folder(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pretrained configuration of a folder that timm saved, and the arguments of its model.

    Raises:
        ErfscopeError: this release of timm reads no folders.
    """
    import timm
    from timm.models import _hub

    load = getattr(_hub, "load_model_config_from_path", None)
    # Older releases read safetensors in a folder as a pickle.
    if load is None or tuple(map(int, timm.__version__.split(".")[:3])) < (1, 0, 26):
        raise ErfscopeError(f"timm {timm.__version__} reads no folders (local-dir:); install timm 1.0.26 or newer")
    config, _, arguments = load(folder)
    return config, arguments or {}


@contextlib.contextmanager
def hub_from_cache() -> Iterator[None]:
    """Let timm take files of the hub from the local cache alone, inside the block."""
    hub: Any = sys.modules.get("timm.models._hub")
    download = getattr(hub, "hf_hub_download", None)
    if download is None:
        yield
        return
    hub.hf_hub_download = functools.partial(download, local_files_only=True)
    try:
        yield
    finally:
        hub.hf_hub_download = download


def traits_of(module: nn.Module) -> Mapping[str, Any]:
    """Return what timm notes of the input that a model was built for; empty for other models and releases."""
    traits: Mapping[str, Any] = getattr(module, "_traits", {})
    return traits
