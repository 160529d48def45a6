"""Kill erfscope at random moments while it measures and writes, and look at what is left: valid files, or none.

    python benchmarks/soak.py --kills 100 --rounds 200

Processes are forked from this one, which has imported everything, so that a kill costs little. A third of the kills
fall anywhere in a run. The others meet it at writing, which takes a few milliseconds: at a random one of the times that
it opens, renames or removes something, it is killed at once, or by a timer within a millisecond. ``--rounds`` adds
whole lives of runs (:mod:`soak_rounds`): stopped, killed and resumed, models in processes of their own, ranks, a disk
that fills up. Prints one row per command and scenario. Exit code 1 if anything was left that is neither valid nor
temporary, if the next run did not succeed, or if a resumed run has other numbers than one in one go."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Before torch is imported: threads do not survive a fork.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import timm  # noqa: F401 (so that no child has to import it)
import torch
import torch._dynamo
from PIL import Image
from soak_rounds import live

import erfscope
import erfscope.core.run.isolated
import erfscope.show.figures
import erfscope.show.save
from erfscope import gate
from erfscope.cli.main import _run
from erfscope.show.command.console import Screen

NETS = """
from torch import nn

def tiny(width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1))
"""
QUICK = ("--input-size", "32", "--device", "cpu", "--samples", "4", "--quiet")
TILES = ("--input-size", "32", "--device", "cpu", "--weights", "random", "--tile", "8")
#: What is killed. Each runs in a folder of its own, where `out` or the baseline is written again and again.
COMMANDS = {
    "analyze": ("analyze", "nets.py:tiny", *QUICK, "-o", "out", "-o", "out.json", "--force"),
    "compare": ("compare", "nets.py:tiny", "B=nets.py:tiny", *QUICK, "-o", "out", "-o", "table.csv", "--force"),
    "merge": ("merge", "shard2", "shard1", "--quiet", "-o", "out", "-o", "map.npz", "--force"),
    "check": ("check", "nets.py:tiny", *QUICK, "--update", "--artifacts", "found"),
    "tile": ("tile", "nets.py:tiny", *TILES, "--run", "image.npy", "-o", "out.npy", "--force"),
}
#: Results of the report that each writes again and again: once there is one, there is always the old or the new.
ROWS_OF = {"analyze": 1, "compare": 2, "merge": 1}
#: The files that each leaves at its end.
WANTED = {"check": ("erf-baseline.json", "found/check.json"), "tile": ("out.npy",)}
#: What must be there before.
BEFORE = {
    "merge": [
        ("analyze", "nets.py:tiny", *QUICK, "--shard", f"{number}/2", "-o", f"shard{number}") for number in (1, 2)
    ],
    "tile": [("tile", "nets.py:tiny", *TILES, "--run", "image.npy", "-o", "whole.npy")],
}
AT_ONCE = 2
POLL_SECONDS = 0.001
#: Names of what Python tells audit hooks: files and folders that are made, filled, renamed and removed.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree")


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the kills of one command."""

    kills: int = 0
    #: Kills of a process at writing.
    writing: int = 0
    #: Kills that left a temporary file.
    left: int = 0
    #: What was left that must not be.
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Child:
    """A forked process, and when it is to be killed."""

    pid: int
    name: str
    place: Path
    #: On the clock of time.perf_counter; None where it ends itself at writing.
    until: float | None


def soak(folder: Path, *, kills: int, seed: int = 0) -> dict[str, Tally]:
    """Kill that many processes, in folders below ``folder``; what was found, by command."""
    chance = random.Random(seed)
    known: dict[str, tuple[float, int]] = {}
    for name in COMMANDS:
        known[name] = prepared(folder / name, name)
        if name == "analyze":
            warm(folder / name / "out", folder / "again")
    tallies = {name: Tally() for name in COMMANDS}
    alive: list[Child] = []
    names = itertools.cycle(COMMANDS)
    while alive or sum(tally.kills for tally in tallies.values()) < kills:
        while len(alive) < min(AT_ONCE, kills - sum(tally.kills for tally in tallies.values())):
            # Two processes never write in one folder: there are more commands than that.
            name = next(name for name in names if all(child.name != name for child in alive))
            alive.append(begun(folder / name, known[name], chance))
        alive = [child for child in alive if not over(child, tallies[child.name])]
        time.sleep(POLL_SECONDS)
    for name, tally in tallies.items():
        if code := finished(forked(folder / name, COMMANDS[name])):
            tally.faults.append(f"{name}: the next run ended with {code}")
        tally.faults += faults(folder / name, complete=True)
    return tallies


def begun(place: Path, known: tuple[float, int], chance: random.Random) -> Child:
    """A process that is to be killed; ``known`` is how long it takes, and how often it writes."""
    seconds, steps = known
    if chance.random() < 1 / 3:
        after = chance.uniform(0, seconds)
        return Child(
            pid=forked(place, COMMANDS[place.name]), name=place.name, place=place, until=time.perf_counter() + after
        )
    step, delay = chance.randint(1, steps), chance.choice([0.0, chance.uniform(2e-5, 1e-3)])
    return Child(
        pid=forked(place, COMMANDS[place.name], Writing(place, step, delay)), name=place.name, place=place, until=None
    )


class Writing:
    """Counts how often this process writes in a folder, and ends it at one of these times.

    Args:
        place: The folder.
        step: Which time; 0 for none.
        delay_s: How long after that; 0 for at once.
    """

    def __init__(self, place: Path, step: int = 0, delay_s: float = 0.0) -> None:
        self.place, self.step, self.delay_s, self.seen = str(place), step, delay_s, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """What ``sys.addaudithook`` calls."""
        if (
            event not in EVENTS
            or isinstance(arguments[0], int)
            or not str(Path(str(arguments[0])).absolute()).startswith(self.place)
        ):
            return
        if event == "open" and not int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR):
            return
        self.seen += 1
        if self.seen == self.step and not self.delay_s:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.seen == self.step:
            # Nobody handles this signal, so that it ends the process as abruptly.
            signal.setitimer(signal.ITIMER_REAL, self.delay_s)


def warm(stored: Path, place: Path) -> None:
    """Import what draws figures too. No gradient may be taken in this process: a forked one then could not take any."""
    report = erfscope.read(stored)
    report.save(place)
    with contextlib.redirect_stdout(io.StringIO()):
        Screen().print(report)


def prepared(place: Path, name: str) -> tuple[float, int]:
    """Make a command's folder and run the command once; how long that took, and how often it wrote."""
    place.mkdir()
    (place / "nets.py").write_text(NETS)
    if name == "tile":
        np.save(place / "image.npy", np.random.default_rng(0).random((3, 64, 64), dtype=np.float32))
    for arguments in BEFORE.get(name, ()):
        if finished(forked(place, arguments)):
            raise SystemExit(f"soak: {' '.join(arguments)} failed")
    started, count = time.perf_counter(), place.parent / f"{name}.steps"
    code = finished(forked(place, COMMANDS[name], Writing(place), count))
    found = faults(place, complete=True)
    if code or found:
        raise SystemExit(f"soak: {name} ended with {code}: {found}")
    return time.perf_counter() - started, int(count.read_text())


def forked(place: Path, arguments: tuple[str, ...], writing: Writing | None = None, count: Path | None = None) -> int:
    """Start a command in a process of its own, which prints nothing; with ``count``, it notes how often it wrote."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.chdir(place)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        if writing is not None:
            sys.addaudithook(writing)
        code = _run(arguments)
        if count is not None and writing is not None:
            count.write_text(str(writing.seen))
    finally:
        # Nothing of this process's own may run on the way out.
        os._exit(code)


def finished(pid: int) -> int:
    """The exit code of a process, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def over(child: Child, tally: Tally) -> bool:
    """Kill a child whose time has come, and look at what one left; whether it is gone."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, -signal.SIGKILL, -signal.SIGALRM):
            tally.faults.append(f"{child.name}: exit code {code}")
        tally.writing += code < 0
        tally.kills += code < 0
    elif child.until is None or time.perf_counter() < child.until:
        return False
    else:
        os.kill(child.pid, signal.SIGKILL)
        finished(child.pid)
        tally.kills += 1
    left = [*temporary(child.place)]
    tally.left += bool(left)
    tally.faults += faults(child.place)
    # A run on tiles takes away what the one before left of its count.
    for path in left if child.name != "tile" else ():
        remove(path)
    return True


def temporary(place: Path) -> Iterator[Path]:
    """What is being written, or was left by a process that was killed at it: its name begins with a dot."""
    for folder in (place, place / "found"):
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.name.startswith("."))


def remove(path: Path) -> None:
    """Remove a temporary file or folder, so that the next one shows."""
    if path.is_dir():
        for inner in path.iterdir():
            remove(inner)
        path.rmdir()
    else:
        path.unlink()


def faults(place: Path, *, complete: bool = False) -> list[str]:
    """What lies in a folder and is not valid, or, where a run is ``complete``, is missing."""
    found = []
    for path in place.rglob("*"):
        if path.is_dir() or any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(place).parts
        ):
            continue
        try:
            look(path)
        except Exception as error:  # whatever is wrong with a file is what is looked for
            found.append(f"{place.name}: {path.relative_to(place)}: {type(error).__name__}: {error}")
    rows = ROWS_OF.get(place.name)
    try:
        if rows is not None and len(erfscope.read(place / "out")) != rows:
            found.append(f"{place.name}: out does not hold {rows} results")
    except erfscope.ErfscopeError as error:
        found.append(f"{place.name}: {error}")
    if place.name == "tile" and complete:
        found += [f"tile: {path.name} is left" for path in place.iterdir() if "out.npy" in path.name[:-1]]
    wanted = WANTED.get(place.name, ("out/report.json", "out/index.html"))
    return found + [f"{place.name}: {name} is missing" for name in wanted if complete and not (place / name).is_file()]


def look(path: Path) -> None:
    """Read a file as what its name says it is; raises where it is not."""
    if path.name == "report.json":
        report = erfscope.read(path)
        missing = [result.id for result in report if result.map is None and result.part is None]
        if missing:
            raise ValueError(f"maps are missing: {missing}")
    elif path.name == "erf-baseline.json":
        if list(gate.read(path)) != ["nets.py:tiny"]:
            raise ValueError(f"the entries are {list(gate.read(path))}")
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.name == "out.npy":
        if np.load(path).tobytes() != np.load(path.with_name("whole.npy")).tobytes():
            raise ValueError("it is not the output of one go")
    elif path.suffix == ".npz":
        with np.load(path) as arrays:
            assert [arrays[name].shape for name in arrays.files]
    elif path.suffix == ".png":
        with Image.open(path) as image:
            image.load()
    elif path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("the page is cut off")
    elif path.suffix == ".csv" and not path.read_text().endswith("\n"):
        raise ValueError("the table is cut off")


def lived(rounds: int, seed: int) -> list[str]:
    """Print what became of whole lives of runs; their faults."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="erfscope-soak-") as name:
        lives = live(Path(name), rounds=rounds, seed=seed)
    print(f"{'scenario':10}{'rounds':>7}{'ended':>9}{'faults':>15}")
    for name, life in lives.items():
        print(f"{name:10}{life.rounds:>7}{life.ended:>9}{len(life.faults):>15}")
    found = [fault for life in lives.values() for fault in life.faults]
    print(f"{rounds} rounds in {time.perf_counter() - started:.0f} s; {len(found)} faults")
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="erfscope-soak-") as name:
        tallies = soak(Path(name), kills=asked.kills, seed=asked.seed) if asked.kills else {}
    print(f"{'command':10}{'kills':>7}{'writing':>9}{'left':>7}{'faults':>8}")
    for name, tally in tallies.items():
        print(f"{name:10}{tally.kills:>7}{tally.writing:>9}{tally.left:>7}{len(tally.faults):>8}")
    kills, writing = sum(tally.kills for tally in tallies.values()), sum(tally.writing for tally in tallies.values())
    found = [fault for tally in tallies.values() for fault in tally.faults]
    print(
        f"{kills} kills in {time.perf_counter() - started:.0f} s, {writing / max(kills, 1):.0%} of them at writing;"
        f" {len(found)} faults"
    )
    found += lived(asked.rounds, asked.seed) if asked.rounds else []
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
