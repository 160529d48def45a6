"""The process that has imported everything and forks one child per task: a child is there at once and knows nothing of
the others.

It is told tasks on its standard input, one JSON object per line, and answers on its standard output, likewise:
``{"started": PID}``, then ``{"code": N, "signal": N, "late": bool}``. It ends, and its child with it, when its input
does: when whoever started it has gone.

A child leads a group of processes, which is killed when the child has ended: nothing that a model starts outlives its
measurement."""

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

from erfscope.isolation.processes import kill_group

#: Seconds between two looks at a child.
LOOK = 0.05
#: Exit code of a child that has raised something.
FAILED = 70
#: How much is kept of why a task failed: what a pipe takes at once.
LONGEST = 600
#: PR_SET_PDEATHSIG of linux/prctl.h.
_DEATH_SIGNAL = 1


def main() -> None:
    """Serve until the input ends."""
    for name in sys.argv[1].split(","):
        importlib.import_module(name)
    # What a model prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        listening, pipe = os.pipe()
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            # While the answers are open anywhere, whoever waits for them does not see that the server has gone.
            os.close(answers.fileno())
            os.close(listening)
            _child(task, server, pipe)
        os.close(pipe)
        with contextlib.suppress(OSError):
            # Here and there, so that the group is there for both.
            os.setpgid(pid, pid)
        _tell(answers, {"started": pid})
        _tell(answers, {**_ended(pid, task["seconds"]), **_heard(listening)})


def _heard(listening: int) -> dict[str, Any]:
    """What a child that has ended has said of its failure: {} where it said nothing."""
    os.set_blocking(listening, False)
    try:
        content = os.read(listening, 1 << 16)
        return dict(json.loads(content)) if content else {}
    except (OSError, ValueError):
        return {}
    finally:
        os.close(listening)


def _tell(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _child(task: dict[str, Any], server: int, pipe: int) -> None:
    """Do one task and end; why it failed, and whose fault that is, goes into a pipe, since a disk may have no space for
    it."""
    code = FAILED
    try:
        os.setpgid(0, 0)
        _die_with(server)
        _print_into(task["log"])
        if task["bytes"]:
            limit_memory(task["bytes"])
        module, _, function = task["call"].partition(":")
        getattr(importlib.import_module(module), function)(task["what"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except BaseException as error:
        _explain(error, pipe)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Without the exit of an interpreter, whose threads and locks are the parent's.
        os._exit(code)


def _print_into(log: str) -> None:
    """Let whatever the task prints go into a file, or nowhere where there is no space for one: no model fails for what
    it prints."""
    try:
        place = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError:
        place = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(place, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _explain(error: BaseException, pipe: int) -> None:
    """Write down why a task failed: for people into the log, in one line and with its cause into the pipe."""
    import traceback

    from erfscope.model_errors import ENVIRONMENT, cause_of
    from erfscope.printable import one_line

    with contextlib.suppress(Exception):
        traceback.print_exc()
    try:
        cause, text = cause_of(error), _text_of(error)
    except MemoryError:
        cause, text = ENVIRONMENT, "there is not enough memory"
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps({"text": one_line(text)[:LONGEST], "cause": cause}).encode())


def _text_of(error: BaseException) -> str:
    """What an exception says, without the name of its class and that of the model, which its row has."""
    from erfscope.errors import ErfscopeError

    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    lines = str(error.reason if isinstance(error, ErfscopeError) else error).strip().splitlines()
    return lines[0] if lines else "its code failed without saying why"


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot be tied to the process that it is forked from")
    if os.getppid() != parent:
        # It ended before that.
        os._exit(FAILED)


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
        # Looked at and not yet collected: until then its number belongs to it and to its group, and to nobody else.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            kill_group(pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return {"code": max(code, 0), "signal": max(-code, 0), "late": late}
        if until is not None and time.monotonic() > until and not late:
            late = True
            kill_group(pid)
        if select.select([sys.stdin], [], [], LOOK)[0]:
            # Nobody writes while a child runs: the other end has gone.
            kill_group(pid)
            sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.exit(0)
