"""The base of values that print."""

from __future__ import annotations

from collections.abc import Iterable

from erfscope.core.answer.outputs import Displayed
from erfscope.show.view.table import Note, Table


class Shown(Displayed):
    """A value that people look at: it prints as text, and is drawn by rich and in notebooks.

    A class of one's own derives from it and defines :meth:`parts`.
    """

    __slots__ = ()

    def parts(self) -> Iterable[Table | Note]:
        """What is shown, one below the other."""
        raise NotImplementedError(f"{type(self).__name__} defines no parts()")
