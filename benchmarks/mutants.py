"""What the tests are worth: the share of small faults in the source that they see, by room.

    python benchmarks/mutants.py --gather                     # which test enters which function: all tests, once
    python benchmarks/mutants.py --out mutants.jsonl          # 400 faults, drawn by a seed; resumes what is there
    python benchmarks/mutants.py --out mutants.jsonl --report mutants.md
    python benchmarks/mutants.py --compare before.jsonl after.jsonl

A fault (``mutant_kinds.py``) is compiled in the place of its file in a process of its own, forked from one that has
imported PyTorch; no file is changed. Of the tests that enter the faulty function, the quickest of each file come
first, until one fails, or ``--budget`` seconds of tests have passed. A process that a test starts anew has no fault.
mutmut and cosmic-ray draw no sample by room, and would import PyTorch anew for each of the faults, which takes longer
than most of these tests.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mutant_kinds import Fault, faulty_trees, marked

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "graph": "core/graph",
    "engine": "core/run/engine",
    "attribution": "core/run/attribution",
    "measures": "core/answer/measures",
    "maps": "core/answer/maps",
    "stimuli": "core/images",
    "storage": "core/answer/storage",
    "gate": "apps/gate",
    "tiling": "core/run/tiling",
}
#: pytest imports it itself, before any fault could be put into it.
LEFT_OUT = "pytest_plugin.py"
#: Tests of one process: most faults are seen by the first of them.
BATCHES = (40, 200, 10_000)
WARM = ("torch", "torchvision", "timm", "captum.attr", "numpy", "scipy.stats", "cv2", "rich.console", "rich_click",
        "matplotlib.figure", "PIL.Image", "msgspec", "safetensors.torch", "jinja2", "pytest", "psutil")  # fmt: skip
#: Where the plugin of ``--gather`` writes.
FOLDER = "MUTANTS_FOLDER"
MARK = "_entered_by_a_test_"

Json = dict[str, Any]


# -- The draw


def sources() -> Iterator[tuple[str, Path]]:
    for room, folder in ROOMS.items():
        for path in sorted((ROOT / "erfscope" / folder).rglob("*.py")):
            if path.name != LEFT_OUT:
                yield room, path


def file_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


# -- Which test enters which function: a plugin of pytest


class ReplacedSource(SourceFileLoader):
    """Loads a module of a file from another tree."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname: str) -> Any:
        return compile(self.tree, self.path, "exec", dont_inherit=True)


class Replacing:
    """Finds modules whose source is replaced.

    Args:
        tree_of: The tree of a file; None for one that is as it is.
    """

    def __init__(self, tree_of: Callable[[Path], ast.Module | None]) -> None:
        self.tree_of = tree_of

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("erfscope."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        file = Path(spec.origin or "") if spec else Path()
        tree = self.tree_of(file) if file.suffix == ".py" else None
        if spec is None or tree is None:
            return None
        spec.loader = ReplacedSource(name, str(file), tree)
        return spec


class Gathering:
    """Writes a line for each test: its seconds, whether it failed, the functions it entered, and the fixtures and the
    file it shares with others; and one for each of these, with the functions entered for it."""

    def __init__(self, folder: Path) -> None:
        self.entered: set[str] = set()
        self.failed: set[str] = set()
        self.file = (folder / f"{os.getpid()}.jsonl").open("a")
        setattr(builtins, MARK, self.entered.add)
        files = {path for _, path in sources()}
        tree_of = lambda path: marked(path.read_text(), file_of(path), MARK) if path in files else None  # noqa: E731
        sys.meta_path.insert(0, Replacing(tree_of))

    def _write(self, **line: object) -> None:
        print(json.dumps({**line, "entered": sorted(self.entered)}), file=self.file, flush=True)

    @contextlib.contextmanager
    def _apart(self, name: str) -> Iterator[None]:
        """Write what is entered for something that tests share; it stays in what the present test has entered."""
        before = {*self.entered}
        self.entered.clear()
        yield
        self._write(shared=name)
        self.entered |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[Any]:
        with self._apart(collector.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        is_shared = fixturedef.scope != "function"
        with self._apart(_fixture_name(fixturedef)) if is_shared else contextlib.nullcontext():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        self.entered.clear()
        begin = time.perf_counter()
        result = yield
        seconds = round(time.perf_counter() - begin, 4)
        fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
        shares = [_fixture_name(each) for each in fixtures if each.scope != "function"]
        name = item.nodeid
        self._write(test=name, seconds=seconds, failed=name in self.failed, shares=[name.partition("::")[0], *shares])
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _fixture_name(definition: Any) -> str:
    return f"{definition.baseid}::{definition.argname}"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Gather in each worker of xdist, and in no pytest that a test starts."""
    if FOLDER in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
        del os.environ["PYTEST_PLUGINS"]
        early_config.pluginmanager.register(Gathering(Path(os.environ.pop(FOLDER))))


def gather(folder: Path, arguments: list[str]) -> int:
    """Run the tests with the plugin, and return pytest's exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_PLUGINS": "mutants", FOLDER: str(folder.resolve())}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


class Tests:
    """What the tests of a run without fault entered, and how long they took."""

    def __init__(self, folder: Path) -> None:
        #: By function, ``file::function``, and by file.
        self.entering: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        lines = [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.open()]
        shared: dict[str, set[str]] = defaultdict(set)
        for line in lines:
            if "shared" in line:
                shared[line["shared"]].update(line["entered"])
        for line in lines:
            if "test" in line and not line["failed"]:
                self.seconds[line["test"]] = line["seconds"]
                for name in {*line["entered"]}.union(*(shared[each] for each in line["shares"])):
                    self.entering[name].add(line["test"])
                    self.entering[name.partition("::")[0]].add(line["test"])

    def chosen(self, fault: Fault, budget: float) -> list[str]:
        """Return the tests that a fault is shown to, in their order: the quick ones first, spread over files."""
        place = f"{fault.file}::{fault.function}" if fault.function else fault.file
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.entering[place], key=lambda test: (self.seconds[test], test)):
            by_file[test.partition("::")[0]].append(test)
        waits = {test: (0.02 + self.seconds[test]) * (rank + 1) for row in by_file.values()
                 for rank, test in enumerate(row)}  # fmt: skip
        chosen, spent = [], 0.0
        for test in sorted(waits, key=lambda test: (waits[test], test)):
            if spent + self.seconds[test] <= budget:
                spent += self.seconds[test]
                chosen.append(test)
        return chosen


# -- One fault


class Chosen:
    """Keeps some tests of what is collected, and the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.tests = {*tests}
        self.ran = 0
        self.by = self.why = ""

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
    if fault:
        file, source = ROOT / fault.file, (ROOT / fault.file).read_text()
        tree = next(tree for each, tree in faulty_trees(source, fault.file, fault.room) if each.id == fault.id)
        ast.fix_missing_locations(tree)
        sys.meta_path.insert(0, Replacing(lambda path: tree if path == file else None))
    plugin = Chosen(tests)
    files = [*dict.fromkeys(test.partition("::")[0] for test in tests)]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = int(pytest.main([*options, *files], plugins=[plugin]))
    if not plugin.by and code not in (0, 5):
        plugin.by, plugin.why = "import", (Path(folder) / "out").read_text()[-300:]
    return {"ran": plugin.ran, "by": plugin.by, "why": plugin.why[:300]}


def in_fork(fault: Fault | None, tests: list[str], limit_s: float) -> Json:
    """Run tests in a process of their own; one that crashes or hangs has seen the fault."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    number = os.fork()
    if not number:
        _begin(fault, tests, folder, writing)
    os.close(writing)
    said, _, _ = select.select([reading], [], [], limit_s)
    answer = os.read(reading, 1 << 16) if said else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)
    os.waitpid(number, 0)
    os.close(reading)
    shutil.rmtree(folder, ignore_errors=True)
    return json.loads(answer) if answer else {"ran": 0, "by": "crash" if said else "hang", "why": ""}


def _begin(fault: Fault | None, tests: list[str], folder: str, writing: int) -> NoReturn:
    os.setsid()
    out = os.open(f"{folder}/out", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(out, stream)
    try:
        os.write(writing, json.dumps(run_tests(fault, tests, folder)).encode())
    finally:
        os._exit(0)


def show(fault: Fault, tests: list[str], seconds: dict[str, float], identity: bool) -> Json:
    """Show a fault to its tests, in batches, until one fails."""
    begin = time.perf_counter()
    line: Json = {**asdict(fault), "tests": len(tests), "ran": 0, "by": "", "why": ""}
    rest = tests
    for size in BATCHES:
        batch, rest = rest[:size], rest[size:]
        if batch and not line["by"]:
            limit_s = 120 + 4 * sum(seconds[test] for test in batch)
            found = in_fork(None if identity else fault, batch, limit_s)
            line |= {**found, "ran": line["ran"] + found["ran"]}
    return {**line, "seen": bool(line["by"]), "seconds": round(time.perf_counter() - begin, 1)}


# -- What is printed


def read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.open()] if path.exists() else []


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
    made.add_argument("--budget", type=float, default=90, help="seconds of tests for a fault")
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
        tests = Tests(options.tests)
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
