"""The face of erfscope: what applications are written on, beside :mod:`erfscope.show`. docs/core.md lists its names.

May import: ``adapters``; not ``show`` and ``apps``.
"""

from __future__ import annotations

from erfscope.core.values.lazy import names_of_stub

__all__, __getattr__ = names_of_stub(__name__)


def __dir__() -> list[str]:
    return __all__
