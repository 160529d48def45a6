"""Processes that begin with PyTorch imported: one that has imported everything forks a child for every command.

``python -m erfscope`` takes seconds to import what it needs. A test whose claim is about what a process does once it
runs (signals, crashes, exit codes, streams, ranks) starts it here; one whose claim is about the start itself, or a
fresh address space, starts its own."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

#: What every process of a measurement imports.
MODULES = (
    "timm",
    "erfscope.cli.main",
    "erfscope.adapters",
    "erfscope.show.figures",
    "erfscope.show.save",
    "erfscope.core.run.parallel",
    "erfscope.apps.gate.checks",
)
#: PR_SET_CHILD_SUBREAPER of linux/prctl.h.
_ADOPT = 36
_LONGEST = 1 << 20


class WarmProcess(subprocess.Popen[str]):
    """``Popen([sys.executable, ...])`` whose process is forked from one that has imported everything; a fresh one where
    this is not Linux.

    The process is a child of the one that asks, so that it is waited for and sent signals as any other. It has the
    working directory, the environment and the streams that it is given."""

    def _execute_child(
        self,
        args: list[str],
        executable: None,
        preexec_fn: None,
        close_fds: bool,
        pass_fds: object,
        cwd: Any,
        env: Any,
        *rest: Any,
    ) -> None:
        if sys.platform != "linux":
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        pipes = rest[3:9]
        given, _, _, out, _, error = pipes
        streams = [own if stream == -1 else stream for own, stream in enumerate((given, out, error))]
        task = {
            "arguments": list(map(str, args[1:])),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        channel = _server()
        socket.send_fds(channel, [json.dumps({**task, "session": rest[-2]}).encode()], streams)
        self.pid = int(channel.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(arguments: list[str], *, timeout: float = 240, **more: Any) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with what is written caught as text."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with WarmProcess(arguments, **{**streams, **more}) as process:
        try:
            out, error = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, error)


@functools.cache
def _server() -> socket.socket:
    """The channel to the process that forks; it is started once, and ends when the channel is closed."""
    # The children of a process that has ended become this one's.
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(there.fileno())]
    server = subprocess.Popen(command, pass_fds=[there.fileno()], env=environment, stdin=subprocess.DEVNULL)
    there.close()

    def end() -> None:
        here.close()
        server.wait(20)

    atexit.register(end)
    return here


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork a process per task, and tell its number; in that process, the task. None at the end."""
    while True:
        content, streams, *_ = socket.recv_fds(channel, _LONGEST, 3)
        if not content:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            number = os.fork()
            if number:
                # Its parent has ended by then, so that the process that asked for it adopts it.
                os.write(writing, str(number).encode())
                os._exit(0)
            for own, stream in enumerate(streams):
                os.dup2(stream, own)
            for descriptor in (channel.detach(), reading, writing, *streams):
                os.close(descriptor)
            return dict(json.loads(content))
        os.waitpid(between, 0)
        channel.send(os.read(reading, 64))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def _begin(task: dict[str, Any], path: list[str]) -> None:
    """Do what ``python ARGUMENTS`` does, in this process."""
    if task["session"]:
        os.setsid()
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    # The streams of before remember whether they lead to a file or a pipe.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    first, *others = task["arguments"]
    named = [entry for entry in task["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [str(Path(first).parent) if first not in ("-m", "-c") else task["cwd"], *named, *path]
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = task["arguments"]
        runpy.run_path(first, run_name="__main__")


def _end(run: Callable[[], None]) -> NoReturn:
    """Run a program and end with its exit code, without taking apart all that is imported, which takes seconds."""
    code: object = 0
    try:
        run()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0) & 0xFF if isinstance(code, int | None) else 1)


if __name__ == "__main__":
    found_in = sys.path[1:]
    for module in MODULES:
        importlib.import_module(module)
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        _end(lambda: _begin(asked, found_in))
