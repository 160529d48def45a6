"""Whether a failure is the model's or its environment's: told by the exceptions themselves, never by their words."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from typing import Literal

from erfscope.errors import ErfscopeError

ErrorCause = Literal["environment", "model"]
ENVIRONMENT: ErrorCause = "environment"
MODEL: ErrorCause = "model"

#: What the system says where space, memory, handles, a device, a file system or a connection has failed, and not what was asked for.
_PASSING = {
    number
    for name in (
        *("ENOSPC", "EFBIG", "EIO", "EDQUOT", "EROFS", "ESTALE", "ENXIO", "ENODEV", "EREMOTEIO", "EUCLEAN", "EMEDIUMTYPE", "ENOMEDIUM"),
        *("ENOMEM", "ENOBUFS", "EAGAIN", "EMFILE", "ENFILE", "ENOLCK", "EBUSY", "ETXTBSY", "EINTR", "ECANCELED", "EDEADLK"),
        *("ETIMEDOUT", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED"),
        *("ENOTCONN", "ESHUTDOWN", "EPIPE", "ENOLINK", "ECOMM", "EPROTO", "ETIME"),
    )
    if (number := getattr(errno, name, None)) is not None
}


def cause_of(error: BaseException) -> ErrorCause:
    """Who is to blame for a failure.

    Args:
        error: As it was raised; of whatever it was raised from, or while handling, the first one that tells counts.
    """
    return ENVIRONMENT if any(map(_is_of_environment, _chain(error))) else MODEL


def is_passing(error: BaseException) -> bool:
    """Whether the system itself says that space, memory, a device or a connection has failed."""
    return isinstance(error, OSError) and (error.errno in _PASSING or isinstance(error, ConnectionError | TimeoutError))


def _is_of_environment(error: BaseException) -> bool:
    if isinstance(error, ErfscopeError) and error.of_environment:
        return True
    if isinstance(error, MemoryError | KeyboardInterrupt) or is_passing(error):
        return True
    if "torch" not in sys.modules:
        return False
    from erfscope.environment import ran_out

    return ran_out(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from or while handling, and so on; and what it says was the reason, as urllib's do."""
    seen: set[int] = set()
    left: list[object] = [error]
    while left:
        found = left.pop()
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        left += [found.__cause__, None if found.__suppress_context__ else found.__context__, getattr(found, "reason", None)]
        left += getattr(found, "exceptions", ())
