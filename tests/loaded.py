"""Models that many tests measure and none changes, loaded and recorded once in a test run."""

from __future__ import annotations

from functools import cache
from typing import Any

from erfscope.adapters import ModuleAdapter, load


@cache
def adapter_of(spec: str = "test_resnet", **options: Any) -> ModuleAdapter:
    """A model by its spec, with random weights; for tests whose claim is not about opening it by name."""
    return load(spec, **{"weights": "random", **options})
