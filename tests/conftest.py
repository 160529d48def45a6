"""Small models and switches that many tests share."""

from __future__ import annotations

import difflib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# No test may wait for a model hub, whatever the machine can reach.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell that runs the tests in the background ignores Ctrl-C, and so would what they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Two workers of as many threads as there are cores would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import erfscope
from erfscope import Result
from erfscope.adapters import ModuleAdapter
from erfscope.apps.lab.command import study_view
from erfscope.apps.lab.studies import StudyResult
from erfscope.cli.commands import others
from erfscope.cli.main import cli, main

pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Accept what is shown now as tests/golden/*.txt.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("more"):
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report() -> None:
    """Weights that a file draws when it is imported are the same in every run: a unit of four channels is dead in one
    draw of sixteen."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _drawn_anew() -> None:
    """Random numbers of a test are those it draws when it is run alone."""
    torch.manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME.txt; what is missing is written, and the test fails all the same."""

    def check(name: str, obtained: str) -> None:
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        known = path.is_file()
        expected = path.read_text(encoding="utf-8") if known else ""
        if request.config.getoption("--update-golden") or not known:
            path.parent.mkdir(exist_ok=True)
            path.write_text(obtained, encoding="utf-8")
        if obtained != expected and not request.config.getoption("--update-golden"):
            lines = difflib.unified_diff(
                expected.splitlines(), obtained.splitlines(), "expected", "obtained", lineterm=""
            )
            pytest.fail(
                "\n".join([*lines, f"accept it: pytest {request.node.nodeid.partition('[')[0]} --update-golden"]),
                pytrace=False,
            )

    return check


@pytest.fixture
def check_shown(tmp_path: Path) -> Callable[..., None]:
    """A study's figure is drawn, and its table has a line per row and fits a terminal without losing a word."""

    def check(result: StudyResult, width: int = 80) -> None:
        result.figure(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 10_000
        assert len(result.table(format="plain").splitlines()) == len(result) + 1
        out = io.StringIO()
        Console(width=width, color_system=None, file=out).print(study_view(result))
        kept = [column for column in result.columns if not column.optional and not column.folds]
        words = [column.title for column in kept] + [column.text(row) for column in kept for row in result]
        words += [word for each in result.claims for text in (each.claim, each.ours) for word in text.split()]
        assert [word for word in words if word not in out.getvalue()] == []
        assert max(map(len, out.getvalue().splitlines())) <= width

    return check


@pytest.fixture(scope="module")
def memory_unplanned() -> Iterator[None]:
    """Measure without planning the memory, which takes as long as measuring a small model and has tests of its own in
    tests/engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("erfscope.core.run.engine.batch.needs", lambda plan: [])
        yield


@pytest.fixture(scope="module")
def figures_undrawn() -> Iterator[None]:
    """Store folders with empty files for their figures: drawing takes most of the time, and has tests of its own in
    tests/figures."""
    from matplotlib.figure import Figure

    from erfscope.show.figures import draw
    from erfscope.show.figures.kinds import FIGURES, Drawn
    from erfscope.show.figures.style import FigureStyle

    drawn, of_folder = draw.figure_of, draw.folder_figures

    def undrawn(results: Sequence[Result], kind: str | None = None, **more: str) -> object:
        kind = kind or draw.default_kind(results)
        # Report.figure names a path, or None; a folder names none.
        is_drawn = "path" in more or kind not in FIGURES or FIGURES[kind].unfit(results) is not None
        return drawn(results, kind, **more) if is_drawn else Figure()

    def empty(results: Sequence[Result], kind: str, style: FigureStyle) -> Drawn:
        style.check()
        draw.refuse_unfit(results, kind, width=style.width)
        return Drawn(figure=Figure(), words=())

    def files(results: Sequence[Result], **more: Any) -> Iterator[tuple[str, bytes]]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(draw, "_drawn", empty)
            return iter([*of_folder(results, **more)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "folder_figures", files)
        patch.setattr(draw, "figure_of", undrawn)
        patch.setattr(draw, "figure_bytes", lambda *_: b"")
        patch.setattr(draw, "png_bytes", lambda *_, **__: b"")
        yield


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of erfscope, GitHub and the terminal."""
    for name in [*os.environ]:
        if name.startswith(("ERFSCOPE_", "GITHUB_")) or name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)


@pytest.fixture
def command(
    plain_environment: None, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str | int | None, str, str]]:
    """Run ``erfscope`` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[str | int | None, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let Python find the modules of a folder, as those of an installed package with commands."""
    monkeypatch.setattr(cli, "commands", {**cli.commands})

    def write(folder: Path, commands: dict[str, str], package: str = "mytool") -> None:
        installed = folder / f"{package}-1.2.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {place}" for name, place in commands.items()]
        (installed / "entry_points.txt").write_text("\n".join(["[erfscope.commands]", *lines]))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, package, raising=False)
        others.cache_clear()

    yield write
    others.cache_clear()


class SmallNet(nn.Module):
    """Strides, a residual connection, an in-place activation: 12 channels at stride 4, then a head."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, 2, 1)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down = nn.Conv2d(8, 12, 3, 2, 1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = x + self.body(x)
        x = self.down(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def small_net() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet()


@pytest.fixture
def small(small_net: SmallNet) -> ModuleAdapter:
    """In float64, so that maps compare to 1e-9."""
    return erfscope.wrap(small_net.double(), input_size=(32, 40))


@pytest.fixture
def pictures() -> Tensor:
    return torch.randn(3, 3, 32, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
