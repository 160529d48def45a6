"""Which test enters which function of the rooms that ``mutants.py`` puts faults into, and its seconds of a processor.

A plugin of pytest (``gather``), what it has written (``RecordedTests``), and how a module is loaded from another tree.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from mutant_kinds import Fault, marked

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
#: Where the plugin of ``--gather`` writes.
FOLDER = "MUTANTS_FOLDER"
MARK = "_entered_by_a_test_"


def sources() -> Iterator[tuple[str, Path]]:
    for room, folder in ROOMS.items():
        for path in sorted((ROOT / "erfscope" / folder).rglob("*.py")):
            if path.name != LEFT_OUT:
                yield room, path


def file_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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
        spec = PathFinder.find_spec(name, path, target)
        file = Path(spec.origin or "") if spec else Path()
        tree = self.tree_of(file) if file.suffix == ".py" else None
        if spec is None or tree is None:
            return None
        spec.loader = ReplacedSource(name, str(file), tree)
        return spec


class Gathering:
    """Writes a line for each test: its seconds of a processor, whether it failed, the functions it entered, the
    fixtures and the file it shares with others; and one for each of these, with the functions entered for it."""

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
        begin = sum(os.times()[:4])
        result = yield
        seconds = round(sum(os.times()[:4]) - begin, 2)
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
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_PLUGINS": "mutant_reach", FOLDER: str(folder.resolve())}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--timeout=1200", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


class RecordedTests:
    """What the tests of a run without fault entered, and how long they took a processor."""

    def __init__(self, folder: Path) -> None:
        #: By function, ``file::function``, and by file.
        self.entering: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        lines = [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]
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
