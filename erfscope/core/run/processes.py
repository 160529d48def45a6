"""One call in a process of its own, forked from a server that has imported everything, and killed with all that it has
started when it has ended."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import connection, resource_tracker
from typing import Any

from erfscope.core.system.model_errors import first_line
from erfscope.core.values.errors import ErfscopeError

#: What the server imports before it forks.
WARM = ("erfscope.core.run.isolated", "timm")
#: Seconds from the request that a process end until it is killed.
GRACE_S = 20.0
#: Seconds between two checks of whether to stop.
PATIENCE_S = 0.2
#: Exit code of a process whose own is unknown, since its server was killed.
UNKNOWN = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process may take."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a call, or why there is none."""

    #: What it returned.
    value: Any = None
    #: Why it returned nothing, in one line.
    error: str | None = None
    seconds: float = 0.0


def run_alone(
    call: Callable[..., Any], *arguments: Any, limits: Limits, stop: Callable[[], bool] | None = None
) -> Outcome:
    """Call a function of a module in a process of its own.

    Args:
        call: The function; its output is discarded.
        *arguments: Its arguments; these and the result must be picklable.
        limits: Of time and memory.
        stop: Whether to ask the process to end early, by SIGTERM.

    Raises:
        ErfscopeError: this system has no fork server.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ErfscopeError(
            f"models cannot be measured in processes of their own on {sys.platform}; leave --isolate out"
        )
    context, began = multiprocessing.get_context("forkserver"), time.monotonic()
    context.set_forkserver_preload(list(WARM))
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sending, limits.bytes, call, arguments))
    # Started with the server, it would take signals out of the mask again.
    resource_tracker.ensure_running()
    # A signal to a group of processes is for the one that waits: its server, and what that forks, must not die of it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sending.close()
    outcome = None
    try:
        is_late = not _wait(process, receiving, limits.seconds, stop)
        try:
            outcome = receiving.recv() if receiving.poll() else None
        except (EOFError, OSError):
            # It is about to end, with an exit code that says why.
            process.join(PATIENCE_S)
    finally:
        receiving.close()
        _kill(process)
    if outcome is None:
        outcome = _late(limits) if is_late else _without_answer(process.exitcode or 0)
    return replace(outcome, seconds=time.monotonic() - began)


def _wait(process: Any, receiving: Any, seconds: float | None, stop: Callable[[], bool] | None) -> bool:
    """Wait for the answer or the end of a process; whether one came in time."""
    until, is_asked = time.monotonic() + (seconds or math.inf), False
    while not connection.wait([receiving, process.sentinel], PATIENCE_S):
        if time.monotonic() > until:
            return False
        if not is_asked and stop is not None and stop():
            process.terminate()
            is_asked, until = True, time.monotonic() + GRACE_S
    return True


def _late(limits: Limits) -> Outcome:
    text = f"no result within {limits.seconds or GRACE_S:g} s; give it longer with --time-limit"
    return Outcome(error=text)


def _without_answer(code: int) -> Outcome:
    """The outcome of a call whose process has ended with this exit code and has sent no result."""
    if code in (-signal.SIGKILL, UNKNOWN):
        text = "its process was killed, most likely for lack of memory; use a smaller --input-size or --batch-size"
    elif code < 0:
        text = f"its process crashed ({signal.Signals(-code).name})"
    else:
        text = f"its process ended with exit code {code}"
    return Outcome(error=text)


def _kill(process: Any) -> None:
    """End a process and all that it has started, as far as they still run."""
    process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _work(sending: Any, most_bytes: int | None, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make the call in its own process, and send the result."""
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if most_bytes is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    try:
        outcome = Outcome(value=call(*arguments))
    except BaseException as error:
        text = error.reason if isinstance(error, ErfscopeError) else first_line(error)
        outcome = Outcome(error=text)
    sending.send(outcome)


def _end_with_parent() -> None:
    """Kill this process, and what it has started, when the process that waits for it has gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)
