"""Rounds of a run's whole life in which its environment fails, and what must stand at the end: the numbers of a run
that nothing befell.

Each round is one scenario with random moments: a run that is stopped or killed and resumed, models in processes of
their own of which the run, the warm process or a child is killed, ranks of which one is killed or stopped, and a disk
or a limit of a file's size that is reached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import erfscope
from erfscope.cli.main import _run
from erfscope.core.answer.storage.files import is_report

NETS = """
from torch import nn

def net(width):
    return nn.Sequential(nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1))

def a(): return net(4)
def b(): return net(5)
def c(): return net(6)
"""
NAMES = "abc"
ASKED = (
    "--input-size",
    "32",
    "--device",
    "cpu",
    "--samples",
    "6",
    "--batch-size",
    "1",
    "--measures",
    "r50,r90",
    "--dtype",
    "float64",
)
TILES = ("--input-size", "32", "--device", "cpu", "--weights", "random", "--tile", "8")
QUIET = ("--quiet", "--format", "csv")
#: Exit codes of a run that its environment has ended, and of one that a signal has.
ENDED = (0, 3, 130, 143, -signal.SIGKILL, -signal.SIGTERM)
#: What a run gets at a random moment.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
#: Bytes of the file system that fills up, and of a page of it.
DISK, PAGE = 2 << 20, 4096
PATIENCE_S = 240
#: Seconds that a process takes to import everything.
WARM_S = 8.0


@dataclass(slots=True, kw_only=True)
class Life:
    """One scenario's rounds."""

    rounds: int = 0
    #: Rounds in which the environment ended the run before its end.
    ended: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Ended:
    """A command that has ended, by itself or otherwise."""

    code: int
    said: str


class Command:
    """An erfscope command in a process forked from this one, which has imported everything, and leads a session of its
    own.

    Args:
        arguments: Of the command line.
        most_bytes: In a file that it writes; None for any number.
        **environment: Variables set for it.
    """

    def __init__(self, arguments: tuple[str, ...], *, most_bytes: int | None = None, **environment: str) -> None:
        self._listening, said = os.pipe()
        self.pid = os.fork()
        self._code: int | None = None
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                os.environ.update(environment)
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(said, 2)
                if most_bytes is not None:
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (most_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
                    )
                code = _run(arguments)
            finally:
                # Nothing of this process's own may run on the way out.
                os._exit(code)
        os.close(said)

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, now or within so many seconds."""
        until = time.monotonic() + within_s
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                return False
            else:
                time.sleep(0.02)
        return True

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if not self.ended():
            os.kill(self.pid, number)

    def finish(self) -> Ended:
        """Wait for its end."""
        late = not self.ended(PATIENCE_S)
        if late:
            os.killpg(self.pid, signal.SIGKILL)
            self.ended(PATIENCE_S)
        os.set_blocking(self._listening, False)
        text = ""
        with contextlib.suppress(BlockingIOError), os.fdopen(self._listening, "rb", buffering=0) as channel:
            text = (channel.read(1 << 16) or b"").decode(errors="replace")
        assert self._code is not None
        return Ended(code=-999 if late else self._code, said=f"not within {PATIENCE_S} s: {text}" if late else text)


class Trial:
    """A folder with the models, and the numbers that every run must end with."""

    def __init__(self, place: Path) -> None:
        self.place, self.nets = place, place / "nets.py"
        self.nets.write_text(NETS)
        self.expected: dict[str, dict[str, float]] = {}
        #: The output of tiles in one go.
        self.tiled = b""
        #: How long runs take that nothing befalls.
        self.seconds = self.tile_seconds = 0.0

    def models(self) -> tuple[str, ...]:
        """What is compared."""
        return tuple(f"{name}={self.nets}:{name}" for name in NAMES)

    def command(self, folder: Path, *more: str) -> tuple[str, ...]:
        """A comparison into a folder."""
        return ("compare", *self.models(), *ASKED, *QUIET, "-o", str(folder), *more)

    def tiles(self, output: Path, *more: str) -> tuple[str, ...]:
        """A run on tiles."""
        image = str(self.place / "image.npy")
        return ("tile", f"{self.nets}:a", *TILES, "--run", image, "-o", str(output), *more)

    def learn(self) -> None:
        """Measure once, undisturbed, and run once on tiles."""
        np.save(self.place / "image.npy", np.random.default_rng(0).random((3, 96, 96), dtype=np.float32))
        started = time.monotonic()
        ended = Command(self.tiles(self.place / "whole.npy")).finish()
        self.tile_seconds = time.monotonic() - started
        if ended.code:
            raise SystemExit(f"soak: an undisturbed run on tiles ended with {ended.code}: {ended.said}")
        self.tiled = (self.place / "whole.npy").read_bytes()
        started = time.monotonic()
        ended = Command(self.command(self.place / "whole")).finish()
        self.seconds = time.monotonic() - started
        if ended.code:
            raise SystemExit(f"soak: an undisturbed run ended with {ended.code}: {ended.said}")
        self.expected = numbers(self.place / "whole")

    def faults(self, folder: Path) -> list[str]:
        """What is wrong with a folder that is said to be complete."""
        try:
            found = numbers(folder)
        except (erfscope.ErfscopeError, TypeError) as error:
            return [f"cannot be read: {error}"]
        if list(found) != list(self.expected):
            return [f"holds {list(found)}"]
        return [
            f"{label}: {name} is {value!r}, and {self.expected[label][name]!r} in one go"
            for label, measures in found.items()
            for name, value in measures.items()
            if value != self.expected[label][name]
        ]


def numbers(folder: Path) -> dict[str, dict[str, float]]:
    """The measures of a stored report by label, and a number that stands for the map, which must be there."""
    report = erfscope.read(folder)
    if lost := [row.label for row in report if row.ok and row.map is None]:
        raise erfscope.ErfscopeError(f"no map of {lost}")
    if failed := [f"{row.label}: {row.error}" for row in report if not row.ok]:
        raise erfscope.ErfscopeError("; ".join(failed))
    return {
        row.label: {name: float(value) for name, value in row.measures.items()}
        | {"map": int(hashlib.sha256(row.map.values.tobytes()).hexdigest()[:12], 16)}
        for row in report
    }


def wrong(ended: Ended, codes: tuple[int, ...] = ENDED) -> list[str]:
    """What a command that has ended must not have done."""
    found = [] if ended.code in codes else [f"exit code {ended.code}: {ended.said[-300:]}"]
    return found + [
        f"said {word!r}: {ended.said[-300:]}" for word in ("Traceback", "internal error") if word in ended.said
    ]


def completed(trial: Trial, folder: Path, *more: str) -> list[str]:
    """Resume a run undisturbed; what is wrong then."""
    ended = Command(trial.command(folder, "--resume", *more)).finish()
    return wrong(ended, (0,)) or trial.faults(folder)


def finished(folder: Path) -> set[str]:
    """The labels of what a folder holds and need not be measured again."""
    report = erfscope.read(folder) if is_report(folder) else ()
    return {row.label for row in report if row.ok and row.part is None}


def lost(folder: Path, before: set[str]) -> list[str]:
    """What was finished before, and is not any more."""
    return [f"{label} was finished, and has gone" for label in sorted(before - finished(folder))]


# --- scenarios ------------------------------------------------------------------------------------


def resumed(trial: Trial, folder: Path, chance: random.Random) -> tuple[bool, list[str]]:
    """A run that gets SIGINT, SIGTERM or SIGKILL at a random moment, up to three times, and is resumed."""
    faults: list[str] = []
    disturbed = False
    for _ in range(chance.randint(1, 3)):
        before = finished(folder)
        run = Command(trial.command(folder, "--resume"))
        if not run.ended(chance.uniform(0, trial.seconds)):
            disturbed = True
            run.signal(chance.choice(SIGNALS))
        faults += wrong(run.finish()) + lost(folder, before)
    return disturbed, faults + completed(trial, folder)


def isolated(trial: Trial, folder: Path, chance: random.Random) -> tuple[bool, list[str]]:
    """Models in processes of their own; the run itself gets a signal, alone or with its group, or one of its processes
    is killed."""
    faults: list[str] = []
    disturbed = False
    for _ in range(chance.randint(1, 2)):
        before = finished(folder)
        run = Command(trial.command(folder, "--isolate", "--resume"))
        # The fork server takes most of the time to start.
        if not run.ended(chance.uniform(0, 3 * trial.seconds + WARM_S)):
            disturbed = True
            with contextlib.suppress(ProcessLookupError):
                if chance.random() < 1 / 3:
                    os.kill(chance.choice([run.pid, *below(run.pid)]), signal.SIGKILL)
                else:
                    chance.choice([os.kill, os.killpg])(run.pid, chance.choice(SIGNALS))
        faults += wrong(run.finish()) + lost(folder, before)
    return disturbed, faults + completed(trial, folder, "--isolate")


def ranked(trial: Trial, folder: Path, chance: random.Random) -> tuple[bool, list[str]]:
    """Two ranks, of which one is killed, or both are asked to end; nothing half-written stays, and one process
    completes it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    runs = [
        Command(trial.command(folder, "--resume"), RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(2)
    ]
    # Figures, which rank 0 draws alone, take most of a run's time.
    time.sleep(chance.uniform(0, trial.seconds / 3))
    disturbed = not all(run.ended() for run in runs)
    if disturbed and chance.random() < 0.5:
        chance.choice(runs).signal(signal.SIGKILL)
    elif disturbed:
        for run in runs:
            run.signal(signal.SIGTERM)
    # One that has not met the others in time says so with 2.
    faults = [fault for run in runs for fault in wrong(run.finish(), (*ENDED, 2))]
    return disturbed, faults + completed(trial, folder)


def filled(trial: Trial, folder: Path, chance: random.Random) -> tuple[bool, list[str]]:
    """A disk that is full after a random number of bytes, or a limit of a file's size where none can be mounted; then
    there is room."""
    extra = ("--isolate",) if chance.random() < 0.7 else ()
    with disk(folder.parent / f"{folder.name}-disk") as place:
        if place is None or chance.random() < 0.3:
            target = folder
            ended = Command(trial.command(target, "--resume", *extra), most_bytes=chance.randint(1, 40) * 1024).finish()
            return ended.code != 0, wrong(ended, (0, 2, 3)) + completed(trial, target, *extra)
        target = place / "run"
        free = os.statvfs(place)
        room = chance.randint(1, 40) * PAGE
        (place / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - room))
        ended = Command(trial.command(target, "--resume", *extra)).finish()
        (place / "ballast").unlink()
        return ended.code != 0, wrong(ended, (0, 2, 3)) + completed(trial, target, *extra)


def tiled(trial: Trial, folder: Path, chance: random.Random) -> tuple[bool, list[str]]:
    """A run on tiles that gets SIGINT, SIGTERM or SIGKILL at a random moment, up to three times, in a third of the
    rounds over an old output, which stays until the new one is whole."""
    output, old = folder.with_suffix(".npy"), b"the old output"
    is_forced = chance.random() < 1 / 3
    if is_forced:
        output.write_bytes(old)
    disturbed, faults = False, []
    for _ in range(chance.randint(1, 3)):
        is_begun = Path(f"{output}.tiles.json").exists()
        if output.exists() and not (is_begun or output.read_bytes() == old):
            break
        run = Command(trial.tiles(output, "--resume" if is_begun else "--force"))
        if not run.ended(chance.uniform(0, trial.tile_seconds)):
            disturbed = True
            run.signal(chance.choice(SIGNALS))
        faults += wrong(run.finish())
        if is_forced and output.read_bytes() not in (old, trial.tiled):
            faults.append("the old output has gone, and the new one is not whole")
    is_begun = Path(f"{output}.tiles.json").exists()
    if not is_begun and output.exists() and output.read_bytes() not in (old, trial.tiled):
        faults.append("an output that is not whole has no count")
    if not output.exists() or output.read_bytes() != trial.tiled:
        faults += wrong(Command(trial.tiles(output, "--resume" if is_begun else "--force")).finish(), (0,))
    if output.read_bytes() != trial.tiled:
        faults.append("the output is not that of one go")
    left = [path.name for path in output.parent.iterdir() if output.name in path.name[:-1]]
    return disturbed, faults + [f"{name} is left" for name in left]


SCENARIOS = {"resume": resumed, "isolate": isolated, "ranks": ranked, "full disk": filled, "tiles": tiled}


def below(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *below(child)]
    return found


@contextlib.contextmanager
def disk(place: Path) -> Iterator[Path | None]:
    """A small file system; None where none may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    try:
        made = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    try:
        yield place if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)


def live(place: Path, *, rounds: int, seed: int = 0) -> dict[str, Life]:
    """That many rounds, the scenarios in turn; what was found, by scenario."""
    trial = Trial(place)
    trial.learn()
    lives = {name: Life() for name in SCENARIOS}
    for number in range(rounds):
        name = list(SCENARIOS)[number % len(SCENARIOS)]
        folder = place / f"round{number}"
        disturbed, faults = SCENARIOS[name](trial, folder, random.Random(f"{seed} {number}"))
        lives[name].rounds += 1
        lives[name].ended += disturbed
        lives[name].faults += [f"round {number}, {name}: {fault}" for fault in faults]
        for left in place.glob(f"*round{number}*"):
            shutil.rmtree(left, ignore_errors=True)
    return lives
