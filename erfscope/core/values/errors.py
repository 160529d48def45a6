"""Exceptions and warnings, whose text says what was asked, what was found, and what to do."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

_KEYWORD = r"[a-z_]+=(?:\([^()]*\)|\{[^{}]*\}|'[^']*'|[\w.*]*)"
_KEYWORDS = rf"{_KEYWORD}(?:(?:,| and| or) {_KEYWORD})*"
#: An option by its keywords, and behind them by its flags, as texts name both; and the other way round.
_BOTH = re.compile(rf"({_KEYWORDS}) \((--[^()]*)\)|(--[a-z-]+[^-();]*(?: or --[a-z-]+[^-();]*)?) \(({_KEYWORDS})\)")
_names_flags = False


@contextmanager
def naming_flags() -> Iterator[None]:
    """Let errors name options by their flags, as a terminal takes them, and not by their keywords."""
    global _names_flags
    before, _names_flags = _names_flags, True
    try:
        yield
    finally:
        _names_flags = before


def in_names_of_caller(text: str) -> str:
    """A text that names options by both, ``in_chans=4 (--in-chans 4)``, with those of the terminal or of Python."""
    return _BOTH.sub(lambda found: found[2] or found[3] if _names_flags else found[1] or found[4], text)


class ErfscopeError(Exception):
    """Base of every error that erfscope raises on purpose. Its text is one line, fit for a user.

    Raised directly, it means that nothing could be started: a bad name, file, option, layer, unit or checkpoint (exit
    code 2)."""

    #: Its text without the model's name at the beginning, for a row of a table, which has the name already.
    reason: str

    def __init__(self, text: object = "", *, model: str = "") -> None:
        """Make an error.

        Args:
            text: What was asked, what was found, and what to do; a sentence without its subject if that is ``model``.
                Of options that it names by keywords and flags, ``in_chans=4 (--in-chans 4)``, the caller's are kept.
            model: The label or spec of the model, if it is to begin the text.
        """
        self.reason = in_names_of_caller(str(text))
        super().__init__(f"{model} {self.reason}" if model else self.reason)


class MeasurementError(ErfscopeError):
    """A model was started but gave no usable result: NaN weights, no spatial map, a failing forward (exit code 3)."""


class FallbackWarning(UserWarning):
    """The default pretrained weights were not available, and seeded random ones are used instead."""


class ErfWarning(UserWarning):
    """A result can be used with care; the text says why."""


def unknown(kind: str, asked: str, known: Iterable[str], *, where: str = "", limit: int = 8) -> ErfscopeError:
    """Return the error for a name that does not exist, with names that exist, similar ones first.

    Args:
        kind: Kind of the name, e.g. ``"layer"``.
        asked: The name as given.
        known: The names that exist.
        where: The place of the names, e.g. ``"resnet50"``.
        limit: Number of known names to list.

    Returns:
        The error, to be raised by the caller.
    """
    names = list(known)
    # Of more names than are listed those that are most like it.
    alike = difflib.get_close_matches(asked, names, n=limit, cutoff=0.6) if len(names) > limit else []
    listed = list(dict.fromkeys((*alike, *names)))[:limit]
    shown = ", ".join(listed) + (f", ... ({len(names)} in all)" if len(names) > limit else "")
    hint = did_you_mean(asked, names)
    place = f" in {where}" if where else ""
    return ErfscopeError(f"unknown {kind} {asked!r}{place}; there is: {shown or 'none'}{hint}")


def did_you_mean(asked: str, names: Sequence[str]) -> str:
    """Return the end of an error that proposes the name most like ``asked``; "" where none is."""
    near = _nearest(asked, names)
    return f" (did you mean {near!r}?)" if near else ""


def _nearest(asked: str, names: Sequence[str]) -> str | None:
    """Return the name most like ``asked``; of several, the one with the same beginning, for r51 r50 rather than r95,
    or the same letters, for r05 r50."""

    def likeness(name: str) -> tuple[float, int, bool]:
        same_start = takewhile(lambda pair: pair[0] == pair[1], zip(asked, name, strict=False))
        return difflib.SequenceMatcher(None, asked, name).ratio(), len(list(same_start)), sorted(asked) == sorted(name)

    return max(difflib.get_close_matches(asked, names, n=10, cutoff=0.5), key=likeness, default=None)


def refuse_broken_link(path: str | Path) -> None:
    """Refuse a path with a link that leads to nothing or back to itself, and a path that no file can have.

    Raises:
        ErfscopeError: it is such a path.
    """
    if "\0" in str(path):
        raise ErfscopeError(f"{str(path)!r} is no name of a file or folder: it holds a null character")
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        if text := loop_text(error, path):
            raise ErfscopeError(text) from error
        parts = (Path(path), *Path(path).parents) if isinstance(error, FileNotFoundError) else ()
        link = next((part for part in parts if part.is_symlink() and not part.exists()), None)
        if link is not None:
            text = (
                f"{str(link)!r} is a link to {str(link.readlink())!r}, which does not exist; remove the link, or let it"
                " lead to a file"
            )
            raise ErfscopeError(text) from error


def loop_text(error: BaseException, path: str | Path | None = None) -> str | None:
    """Return the text of an error that is caused by a link which leads back to itself; None for any other error.

    Args:
        error: The exception of the system or the standard library.
        path: The path that was asked for; None to take it from the error.
    """
    loop = re.fullmatch(r"Symlink loop from '(.*)'", str(error)) if isinstance(error, RuntimeError) else None
    if loop is None and not (isinstance(error, OSError) and error.errno == errno.ELOOP):
        return None
    where = path or (loop[1] if loop else getattr(error, "filename", None))
    return (
        f"{str(where)!r} is, or lies behind, a link that leads back to itself; remove the link, or let it lead to a"
        " file"
    )
