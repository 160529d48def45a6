"""What applications print and write with: tables, columns, notes and lines, the words for results and numbers, and the
writer of files. Beside it :mod:`erfscope.show.drawn`, what is drawn of a map, and :mod:`erfscope.show.terminal`,
:mod:`erfscope.show.page` and :mod:`erfscope.show.plot`, which import rich, Jinja and matplotlib.

May import: ``core`` and below.
"""

from __future__ import annotations

from erfscope.core.values.lazy import names_of_stub

__all__, __getattr__ = names_of_stub(__name__)


def __dir__() -> list[str]:
    return __all__
