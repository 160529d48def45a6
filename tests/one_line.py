"""Refusals: what a call says that cannot be done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from erfscope import ErfscopeError


def one_line(call: Callable[[], object], words: str = "", kind: type[Exception] = ErfscopeError) -> str:
    """The one line with which a call is refused, which matches ``words``."""
    with pytest.raises(kind, match=words or None) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
