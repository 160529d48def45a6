"""What the tests are worth: the share of small faults in the source that they see, by room.

    python benchmarks/mutants.py --gather                     # which test enters which function: all tests, once
    python benchmarks/mutants.py --out mutants.jsonl          # 400 faults, drawn by a seed; resumes what is there
    python benchmarks/mutants.py --out mutants.jsonl --report mutants.md
    python benchmarks/mutants.py --compare before.jsonl after.jsonl

A fault (``mutant_kinds.py``) is compiled in the place of its file in a process of its own, forked from one that has
imported PyTorch; no file is changed. Of the tests that enter the faulty function, the quickest of each file come
first, until one fails, or ``--budget`` seconds of a processor are spent. A process that a test starts anew has no
fault.
mutmut and cosmic-ray draw no sample by room, and would import PyTorch anew for each of the faults, which takes longer
than most of these tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import sha256
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mutant_kinds import Fault, faulty_trees
from mutant_reach import ROOMS, ROOT, RecordedTests, Replacing, file_of, gather, sources

#: Tests of a process, from the first to the last of those chosen: most faults are seen by the first batch.
BATCHES = (0, 40, 240, 10_000)
WARM = ("torch", "torchvision", "timm", "captum.attr", "numpy", "scipy.stats", "cv2", "rich.console", "rich_click",
        "matplotlib.figure", "PIL.Image", "msgspec", "safetensors.torch", "jinja2", "pytest", "psutil")  # fmt: skip
#: PR_SET_PDEATHSIG of linux/prctl.h.
DIES_WITH_PARENT = 1
#: Bytes that a process may address: a fault may ask for any number.
MEMORY = 12 << 30
Json = dict[str, Any]


# -- The draw


def draw(faults: Iterable[Fault], count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults, all kinds alike, whatever their order is: each has a number of its own, and the lowest
    are taken. Those of a function that has not changed are drawn again as far as the number of others allows."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in sorted(faults, key=lambda fault: sha256(f"{seed}|{fault.id}".encode()).hexdigest()):
        by_kind[fault.kind].append(fault)
    ranked = [(rank, kind, fault) for kind, row in by_kind.items() for rank, fault in enumerate(row)]
    return [fault for _, _, fault in sorted(ranked, key=lambda each: each[:2])[:count]]


def drawn(rooms: list[str], count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults of all rooms, as many of each, those of ``rooms``."""
    names = [*ROOMS]
    faults: dict[str, list[Fault]] = {room: [] for room in rooms}
    for room, path in sources():
        if room in rooms:
            faults[room] += [fault for fault, _ in faulty_trees(path.read_text(), file_of(path), room)]
    counts = {room: (count + place) // len(names) for place, room in enumerate(names)}
    return [fault for room in rooms for fault in draw(faults[room], counts[room], seed)]


# -- One fault


class Shown:
    """A plugin of pytest: puts a fault into its file, keeps some tests of what is collected, and the first that
    fails."""

    def __init__(self, fault: Fault | None, tests: list[str]) -> None:
        self.fault, self.tests = fault, {*tests}
        self.ran = 0
        self.is_imported = False
        self.by = self.why = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        # Before the finder of pytest, which finds each module of a package with a plugin, and after it is there.
        sys.meta_path.insert(0, Replacing(self._tree_of))

    def _tree_of(self, path: Path) -> ast.Module | None:
        if self.fault is None or path != ROOT / self.fault.file:
            return None
        self.is_imported = True
        trees = faulty_trees(path.read_text(), self.fault.file, self.fault.room)
        return ast.fix_missing_locations(next(tree for each, tree in trees if each.id == self.fault.id))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.by:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            self.by, self.why = report.nodeid, next(iter(text.strip().splitlines()[:: 1 if crash else -1]), "")


def run_tests(fault: Fault | None, tests: list[str], folder: str) -> Json:
    """Run tests with a fault, in this process, which has imported nothing of erfscope."""
    os.environ.update(TMPDIR=folder, HYPOTHESIS_STORAGE_DIRECTORY=f"{folder}/hypothesis", PYTHONPATH=str(ROOT))
    sys.path[0], tempfile.tempdir, sys.dont_write_bytecode = str(ROOT), None, True
    os.chdir(ROOT)
    # Processes that are spawned import what "python -m pytest" has.
    sys.modules["__main__"] = importlib.import_module("pytest.__main__")
    plugin = Shown(fault, tests)
    files = [*dict.fromkeys(test.partition("::")[0] for test in tests)]
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--timeout=1200",
        "-W",
        "ignore:Module already imported",
    ]
    code = int(pytest.main([*options, *files], plugins=[plugin]))
    if not plugin.by and code not in (0, 5):
        plugin.by, plugin.why = "import", _end_of(folder)
    return {"ran": plugin.ran, "by": plugin.by, "why": plugin.why[:300], "imported": plugin.is_imported}


def in_fork(fault: Fault | None, tests: list[str], seconds: float) -> Json:
    """Run tests, which take a processor some seconds, in a process of their own; one that crashes or takes much longer
    has seen the fault."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    number = os.fork()
    if not number:
        resource.setrlimit(resource.RLIMIT_CPU, (int(60 + 4 * seconds),) * 2)
        _begin(fault, tests, folder, writing)
    os.close(writing)
    said, _, _ = select.select([reading], [], [], 600 + 20 * seconds)
    answer = os.read(reading, 1 << 16) if said else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)
    os.waitpid(number, 0)
    os.close(reading)
    lost = {"ran": 0, "by": "crash" if said else "hang", "why": _end_of(folder), "imported": True}
    found = json.loads(answer) if answer else lost
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _end_of(folder: str) -> str:
    """What a process has written last."""
    return (Path(folder) / "out").read_text(errors="replace")[-300:]


def _begin(fault: Fault | None, tests: list[str], folder: str, writing: int) -> NoReturn:
    os.setsid()
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.open(f"{folder}/out", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(out, stream)
    try:
        os.write(writing, json.dumps(run_tests(fault, tests, folder)).encode())
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(0)


def show(fault: Fault, tests: list[str], seconds: dict[str, float], identity: bool) -> Json:
    """Show a fault to its tests, in batches, until one fails that fails alone too."""
    begin = time.perf_counter()
    line: Json = {**asdict(fault), "tests": len(tests), "ran": 0, "by": "", "why": ""}
    planted = None if identity else fault
    waiting = [batch for first, last in pairwise(BATCHES) if (batch := tests[first:last])]
    while waiting and not line["by"]:
        batch = waiting.pop(0)
        found = in_fork(planted, batch, sum(seconds[test] for test in batch))
        line |= {**found, "ran": line["ran"] + found["ran"]}
        if found["by"] in batch and not in_fork(planted, [found["by"]], seconds[found["by"]])["by"]:
            # It fails after another test, whatever the source.
            line |= {"by": "", "why": ""}
            if rest := [test for test in batch if test != found["by"]]:
                waiting.insert(0, rest)
    return {**line, "seen": bool(line["by"]), "seconds": round(time.perf_counter() - begin, 1)}


# -- What is printed


def read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shares(lines: list[Json]) -> dict[str, tuple[int, int]]:
    """By room: the faults, and those seen."""
    faults, seen = Counter(line["room"] for line in lines), Counter(line["room"] for line in lines if line["seen"])
    rooms = {room: (faults[room], seen[room]) for room in ROOMS if faults[room]}
    return {**rooms, "all": (faults.total(), seen.total())}


def report(lines: list[Json]) -> str:
    rows = [f"| {room} | {count} | {seen} | {seen / count:.0%} |" for room, (count, seen) in shares(lines).items()]
    table = ["| room | faults | seen | share |", "|---|---:|---:|---:|", *rows]
    survivors = sorted((line for line in lines if not line["seen"]), key=lambda line: (line["room"], line["file"]))
    parts = ["\n".join(table), "Not seen:"]
    for line in survivors:
        place = f"{line['file']}:{line['line']} {line['function']}, {line['kind']}, {line['ran']} tests"
        before, after = difference(line["before"], line["after"])
        parts.append(f"* {place}\n  - `{before}`\n  - `{after}`")
    return "\n\n".join(parts) + "\n"


def difference(before: str, after: str, around: int = 60) -> tuple[str, str]:
    """Return two texts without what is far from where they differ."""
    begin = max(0, _same(before, after) - around)
    end = max(0, min(_same(before[::-1], after[::-1]), len(before) - begin, len(after) - begin) - around)
    return before[begin : len(before) - end], after[begin : len(after) - end]


def _same(first: str, second: str) -> int:
    """How many characters are the same."""
    return next((index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)


def compare(first: list[Json], second: list[Json]) -> str:
    rows, others = shares(first), shares(second)
    lines = ["| room | before | after |", "|---|---:|---:|"]
    for room in [*ROOMS, "all"]:
        pair = [f"{seen / count:.0%} of {count}" if count else "" for count, seen in
                (rows.get(room, (0, 0)), others.get(room, (0, 0)))]  # fmt: skip
        lines.append(f"| {room} | {pair[0]} | {pair[1]} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--tests", type=Path, default=ROOT / "build" / "mutants", help="folder of --gather")
    made.add_argument("--gather", action="store_true", help="run the tests; further arguments are pytest's")
    made.add_argument("--out", type=Path, help="JSON lines; faults that stand there are not shown again")
    made.add_argument("--rooms", default=",".join(ROOMS))
    made.add_argument("--count", type=int, default=400, help="faults of all rooms")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--budget", type=float, default=60, help="seconds of a processor for the tests of a fault")
    made.add_argument("--jobs", type=int, default=2)
    made.add_argument("--identity", action="store_true", help="without the faults: nothing must be seen")
    made.add_argument("--report", type=Path)
    made.add_argument("--compare", type=Path, nargs=2)
    return made


def main() -> int:
    options, others = parser().parse_known_args()
    if options.gather:
        return gather(options.tests, others)
    if options.compare:
        print(compare(*map(read, options.compare)))
    elif options.report:
        options.report.write_text(report(read(options.out)))
    else:
        os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        for name in WARM:
            importlib.import_module(name)
        known = {line["id"] for line in read(options.out)}
        tests = RecordedTests(options.tests)
        faults = [each for each in drawn(options.rooms.split(","), options.count, options.seed) if each.id not in known]
        with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool, options.out.open("a") as out:
            waiting = [
                pool.submit(show, fault, tests.chosen(fault, options.budget), tests.seconds, options.identity)
                for fault in faults
            ]
            for done in as_completed(waiting):
                line = done.result()
                print(json.dumps(line), file=out, flush=True)
                print(
                    line["room"],
                    line["kind"],
                    f"{line['file']}:{line['line']}",
                    "seen" if line["seen"] else "-",
                    line["seconds"],
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
