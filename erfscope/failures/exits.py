"""A model whose code ends the program: sys.exit, KeyboardInterrupt and the like become an error like any other."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType
from typing import Any

from erfscope.failures.plain import was_raised_in_python


class ModelExitError(RuntimeError):
    """The code of a model asked for the end of the program, or raised what no handler of errors catches."""


@contextlib.contextmanager
def contain_exits() -> Iterator[None]:
    """Let whatever other people's code raises inside be an ``Exception``.

    What a signal raises passes, Ctrl-C among it, and so does what erfscope itself ends a pass with.

    Raises:
        ModelExitError: the code raised something else that is no ``Exception``.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if not _is_the_models(error):
            raise
        raise ModelExitError(_exit_text(error)) from error


def _is_the_models(error: BaseException) -> bool:
    """Whether a model's own code raised it, rather than a signal's handler, Python or erfscope."""
    if type(error).__module__.partition(".")[0] == "erfscope" or _is_of_a_signal(error):
        return False
    # Python itself raises these two: at Ctrl-C, wherever the program is, and in a generator that is closed.
    return was_raised_in_python(error) if isinstance(error, KeyboardInterrupt | GeneratorExit) else True


def _is_of_a_signal(error: BaseException) -> bool:
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    found = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _exit_text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"its code called sys.exit({error.code!r}), so that there is no result; take that call out"
    text = " ".join(str(error).split())
    return f"its code raised {type(error).__name__}" + (f": {text}" if text else "") + ", which ends a program; let it raise a RuntimeError"
