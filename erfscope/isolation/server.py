"""The process that has imported everything and forks one child per task: a child is there at once and knows nothing of the others.

It is told tasks on its standard input, one JSON object per line, and answers on its standard output, likewise: ``{"started": PID}``, then
``{"code": N, "signal": N, "late": bool}``. It ends, and its child with it, when its input does: when whoever started it has gone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, TextIO

#: Seconds between two looks at a child.
LOOK = 0.05
#: Exit code of a child that has raised something.
FAILED = 70


def main() -> None:
    """Serve until the input ends."""
    warm, fork = sys.argv[1].split(","), hasattr(os, "fork") and sys.platform == "linux"
    for name in warm:
        importlib.import_module(name)
    # What a model prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _tell(answers, {"ready": os.getpid(), "forks": fork})
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(task)
        _tell(answers, {"started": pid})
        _tell(answers, _ended(pid, task["seconds"]))


def _tell(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _child(task: dict[str, Any]) -> None:
    """Do one task and end."""
    code = FAILED
    try:
        log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if task["bytes"]:
            limit_memory(task["bytes"])
        module, _, function = task["call"].partition(":")
        getattr(importlib.import_module(module), function)(task["what"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Without the exit of an interpreter, whose threads and locks are the parent's.
        os._exit(code)


def limit_memory(count: int) -> None:
    """Let allocations fail beyond so many bytes, where the system can do that."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (count, count))


def _ended(pid: int, seconds: float | None) -> dict[str, Any]:
    """Wait for a child, for so long at most."""
    until = None if seconds is None else time.monotonic() + seconds
    late = False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return {"code": max(code, 0), "signal": max(-code, 0), "late": late}
        if until is not None and time.monotonic() > until and not late:
            late = True
            os.kill(pid, signal.SIGKILL)
        if select.select([sys.stdin], [], [], LOOK)[0]:
            # Nobody writes while a child runs: the other end has gone.
            os.kill(pid, signal.SIGKILL)
            sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.exit(0)
