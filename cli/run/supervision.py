"""A process that waits for the one that runs other people's code, so that the exit code is the command's own whatever that does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence

from erfscope.cli.console.screen import complain
from erfscope.cli.run.limits import memory_hint

#: Commands that run models.
SUPERVISED = ("analyze", "check", "compare", "layers")
#: What is passed on, and what ends the waiting.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD")
#: ``si_code`` of what the terminal sends to every process in the foreground.
_BY_TERMINAL = 0x80
#: PR_SET_PDEATHSIG of linux/prctl.h.
_DEATH_SIGNAL = 1
#: Exit code where there is no result.
NO_RESULT = 3
#: Seconds within which the same signal comes again, passed on, to a process that has had it with its group, as from ``timeout``.
_ECHO_S = 0.5
_echo_s = 0.0


def echo_s() -> float:
    """Seconds for which a signal may come twice though it was sent once; 0 in a process that nobody waits for in this way."""
    return _echo_s


def can_be_supervised(given: Sequence[str]) -> bool:
    """Whether these arguments run models, here and by this process alone: a rank is looked after by torchrun."""
    is_rank = any(name in os.environ for name in ("LOCAL_RANK", "RANK"))
    return sys.platform == "linux" and not is_rank and any(word in SUPERVISED for word in given)


def supervised(run: Callable[[], int]) -> int:
    """The exit code of ``run``, called in a process of its own; 3 where that ends before it has given one.

    What ends it may be ``os._exit(0)`` or ``exit(0)`` in a library, a crash, or the system for lack of memory. Signals are passed on. The
    process dies with this one.
    """
    global _echo_s
    signals = {getattr(signal, name) for name in _SIGNALS}
    # Whoever started this may have had it ignored, and then nobody would be told of the child's end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        answer, told = os.pipe()
        waiting, child = os.getpid(), os.fork()
    except OSError:  # too many processes or files: the command itself needs neither
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run()
    if child == 0:
        os.close(answer)
        _die_with(waiting)
        _echo_s = _ECHO_S
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = run()
        with contextlib.suppress(OSError):
            os.write(told, bytes([code & 0xFF]))
        return code
    os.close(told)
    status, asked = _wait(child, signals)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    told_code = os.read(answer, 1) if select.select([answer], [], [], 0)[0] else b""
    if told_code:
        return told_code[0]
    return _end_without_code(status, asked)


def _wait(child: int, signals: set[signal.Signals]) -> tuple[int, set[int]]:
    """How the child has ended, as an exit code or minus a signal, and which signals came meanwhile."""
    asked: set[int] = set()
    while True:
        found = signal.sigwaitinfo(signals)
        if found.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), asked
            continue
        asked.add(found.si_signo)
        if found.si_code != _BY_TERMINAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, found.si_signo)


def _end_without_code(status: int, asked: set[int]) -> int:
    """The exit code where the child has given none."""
    if -status in asked:
        # Whoever asked for that shall see that it was heeded.
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if status < 0:
        name = signal.Signals(-status).name
        why = memory_hint() or ("the system does that where memory runs out" if name == "SIGKILL" else "a library that it uses has crashed")
        complain(f"the process was ended by {name} while other people's code ran, so that there is no result: {why}")
    else:
        text = f"the model's code ended the process (exit code {status}), so that there is no result"
        complain(f"{text}; take os._exit or the like out of it")
    return NO_RESULT


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(NO_RESULT)
