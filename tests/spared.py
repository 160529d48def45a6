"""What many commands of a file do alike and none is tested for: models by name are opened once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from erfscope.adapters import ModuleAdapter
from erfscope.core.request.request import Request
from erfscope.core.run import models

#: Names of timm; a file, a folder or a hub can have changed since.
NAME = re.compile(r"(?:[^=]*=)?[a-z]\w*")


@pytest.fixture(scope="module")
def opened_once() -> Iterator[None]:
    """A model that is opened a second time is that of the first: for tests whose claim is not about opening it."""
    built, kept = models.open_adapter, {}

    def opened(model: Any, request: Request, **asked: Any) -> tuple[ModuleAdapter, str]:
        changes = [request.insert, *request.building.values()]
        known = isinstance(model, str) and NAME.fullmatch(model) and not isinstance(request.images, Tensor)
        if not known or any(change is not None for change in changes):
            return built(model, request, **asked)
        s = request.settings
        key = (model, s.seed, s.device, s.dtype, s.squash, *asked.items())
        if key not in kept:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                kept[key] = (built(model, request, **asked), said)
        found, said = kept[key]
        for each in said:
            warnings.warn(each.message, stacklevel=1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "open_adapter", opened)
        yield
