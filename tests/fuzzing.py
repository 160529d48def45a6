"""What the fuzz tests share: how many cases they try, and what a call may do.

A call on hostile input works, or raises ErfscopeError with one line of text. It takes neither long nor much memory, and
the command line ends with one of its exit codes. The suite tries a few cases, always the same; ERFSCOPE_FUZZ=thorough
tries many, others every time."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from erfscope import ErfscopeError
from erfscope.cli.main import _run

THOROUGH = os.environ.get("ERFSCOPE_FUZZ") == "thorough"
#: Cases of a thorough run for each one of the suite's.
FACTOR = 20
#: A failing case is shown as it is: making it smaller takes longer than finding it.
PHASES = (Phase.explicit, Phase.generate)
#: Of the processor, so that a busy machine does not make a slow case.
SECONDS = 10.0
#: What one case may take beside what the process has already.
SPARE_BYTES = 1 << 30
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def fuzz(cases: int) -> Callable[[Any], Any]:
    """Try a number of cases in the suite, and many times as many in a thorough run."""
    return settings(
        max_examples=cases * (FACTOR if THOROUGH else 1),
        derandomize=not THOROUGH,
        database=None,
        deadline=None,
        phases=PHASES,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Hang(BaseException):
    """A case took too long. No Exception, lest the code under test catch it."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within it too much time and too much memory are errors."""

    def stop(_number: int, _frame: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def works_or_refuses(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error that says in one line why it gives nothing."""
    with bounded():
        try:
            return call()
        except ErfscopeError as error:
            found = error
    assert str(found).strip()
    assert len(str(found)) < 4000
    return found


def command(*arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, stdout and stderr, which are seen to be what they must be."""
    out, err = io.StringIO(), io.StringIO()
    with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(arguments)
    said = err.getvalue()
    assert code in (0, 1, 2, 3), (code, arguments, said)
    wanted = {"-v", "--verbose"} & {*arguments}
    assert wanted or "Traceback" not in said, (arguments, said)
    assert "internal error" not in said, (arguments, said)
    assert "not enough memory" not in said, (arguments, said)
    assert wanted or code != 2 or len(said.splitlines()) == 1, (arguments, said)
    assert not steering(out.getvalue() + said), (arguments, said)
    return code, out.getvalue(), said


def steering(text: str) -> set[str]:
    """Characters that could steer a terminal."""
    return {c for c in text if c not in "\n\t" and unicodedata.category(c) in STEERING}


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, with what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


#: Numbers at which arithmetic goes wrong, and values of every other kind.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 5e-324, 0.0, -0.0]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "nan",
            "image",
            "jacobian",
            "../../x",
            "/etc/passwd",
            "a\x00b",
            "\x1b[31m",
            "\u202e",
            "<b>",
            "[red]",
            "x" * 300,
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
