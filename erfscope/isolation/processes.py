"""Tasks in processes of their own, one after the other, each with a limit of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erfscope.errors import ErfscopeError
from erfscope.model_errors import ENVIRONMENT, MODEL, ErrorCause

#: What a warm process has imported before it is asked for anything.
WARM = ("erfscope.api", "timm")
#: Seconds that a child has for ending by itself when it is asked to, before it is killed.
GRACE = 20.0
#: How a process may end: by itself, out of time, killed by another, by a signal of its own, with an error.
Ended = Literal["ok", "late", "killed", "crashed", "failed"]
#: Seconds between two looks at whether to stop.
PATIENCE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process may take."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a process has ended."""

    code: int
    signal: int = 0
    late: bool = False
    seconds: float = 0.0
    #: The last line that it wrote.
    last_line: str = ""
    #: Why it failed and whose fault that is, where it said so itself.
    text: str = ""
    cause: ErrorCause | None = None

    @property
    def ok(self) -> bool:
        """Whether it has done what it was asked to."""
        return self.code == 0 and self.signal == 0

    @property
    def ended(self) -> Ended:
        """How it has ended, in one word."""
        if self.ok or self.late:
            return "late" if self.late else "ok"
        if self.signal:
            return "killed" if self.signal == signal.SIGKILL else "crashed"
        return "failed"

    @property
    def error_cause(self) -> ErrorCause:
        """Who is to blame where it has failed: whatever ended it from outside is the environment."""
        return ENVIRONMENT if self.late or self.signal else self.cause or MODEL

    def why(self, limits: Limits) -> str:
        """Why there is no result."""
        if self.late:
            return f"no result within {limits.seconds:g} s; give it longer with --time-limit"
        if self.signal == signal.SIGKILL:
            return "its process was killed, most likely for lack of memory; use a smaller --input-size or --batch-size"
        if self.signal:
            return f"its process crashed ({_signal_name(self.signal)})" + (
                f": {self.last_line}" if self.last_line else ""
            )
        return self.text or self.last_line or f"its process ended with exit code {self.code}"


class Processes:
    """A warm process that forks a child per task; used as a context.

    Args:
        limits: Of every child.
        warm: Modules that the warm process imports first.
    """

    def __init__(self, limits: Limits, warm: Sequence[str] = WARM) -> None:
        self.limits, self._modules = limits, warm
        self._server: subprocess.Popen[bytes] | None = None
        #: The child that runs, and the group of all processes that it starts.
        self._child = 0

    def __enter__(self) -> Processes:
        if sys.platform != "linux":
            raise ErfscopeError(
                f"models can be measured in processes of their own on Linux only, not on {sys.platform}; leave"
                " --isolate out"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, call: str, what: Any, *, log: Path, stop: Callable[[], bool] | None = None) -> Outcome:
        """Run one task to its end.

        Args:
            call: ``"module:function"`` that is called with ``what``.
            what: JSON values.
            log: Where what it prints goes.
            stop: Whether to ask the child to end early.
        """
        began = time.monotonic()
        task = {"call": call, "what": what, "log": str(log), "seconds": self.limits.seconds, "bytes": self.limits.bytes}
        server = self._warm()
        assert server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            server.stdin.write(json.dumps(task).encode() + b"\n")
            server.stdin.flush()
        ended: dict[str, Any] | None = None
        asked_to_stop: float | None = None
        for answer in _answers(server):
            if answer is not None:
                self._child = answer.get("started", self._child)
                if "code" in answer:
                    ended = answer
                    break
            if stop is not None and stop() and self._child:
                if asked_to_stop is None:
                    asked_to_stop = time.monotonic()
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._child, signal.SIGTERM)
                elif time.monotonic() > asked_to_stop + GRACE:
                    kill_group(self._child)
        if ended is None:
            self._end()
            ended = {"code": 1, "signal": signal.SIGKILL}
        self._child = 0
        return Outcome(**ended, seconds=time.monotonic() - began, last_line=last_line(log))

    def _warm(self) -> subprocess.Popen[bytes]:
        if self._server is not None and self._server.poll() is not None:
            self._end()
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "erfscope.isolation.server", ",".join(self._modules)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C is for the one who waits: it passes on what the child shall know.
                start_new_session=True,
            )
        return self._server

    def _end(self) -> None:
        if self._child:
            # The warm process does so too, where it still can.
            kill_group(self._child)
            self._child = 0
        server, self._server = self._server, None
        if server is None:
            return
        for stream in (server.stdin, server.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _signal_name(number: int) -> str:
    """``SIGABRT`` and the like; a real-time signal has a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _answers(server: subprocess.Popen[bytes]) -> Iterator[dict[str, Any] | None]:
    """What the warm process answers; None from time to time while there is nothing. They end where it has died."""
    assert server.stdout is not None
    channel, rest = server.stdout.fileno(), b""
    while True:
        if not select.select([channel], [], [], PATIENCE)[0]:
            if server.poll() is not None:
                return
            yield None
            continue
        found = os.read(channel, 65536)
        if not found:
            return
        *lines, rest = (rest + found).split(b"\n")
        yield from (json.loads(line) for line in lines)


def kill_group(leader: int) -> None:
    """Kill a process and whatever it has started, if there is any of it left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def last_line(log: Path) -> str:
    """The last line that a child has written."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""
