"""Claims about what is installed: a wheel from the source distribution works outside of the checkout, and builds where
there are no links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import erfscope

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("adapters", "cli")
BUILD = "import setuptools.build_meta as backend; print(backend.build_{kind}({folder!r}))"


def checkout(folder: Path, *, has_links: bool) -> Path:
    """What a package is built of; without links, git writes a text file in the place of each, as on Windows."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("erfscope", *LINKS):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    if not has_links:
        for name in LINKS:
            (folder / "erfscope" / name).unlink()
            (folder / "erfscope" / name).write_text(f"../{name}")
    return folder


def build(kind: str, source: Path, folder: Path) -> Path:
    folder.mkdir()
    done = run(sys.executable, "-c", BUILD.format(kind=kind, folder=str(folder)), cwd=source)
    return folder / done.stdout.splitlines()[-1]


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of this checkout, and nothing of the process that tests it.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.startswith("erfscope-")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the source distribution alone."""
    place = tmp_path_factory.mktemp("built")
    sdist = build("sdist", checkout(place / "checkout", has_links=True), place / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    return build("wheel", place / sdist.name.removesuffix(".tar.gz"), place / "wheel")


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Of an environment with the wheel, and with what it needs from the one of the tests."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    python = venv / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).stdout.strip())
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=venv)
    return python


def test_the_wheel_holds_every_module_and_every_file_beside_them(wheel):
    files = {
        path.relative_to(ROOT / top).as_posix() if top == "erfscope" else path.relative_to(ROOT).as_posix()
        for top in ("erfscope", *LINKS)
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not any(parent.is_symlink() for parent in path.parents)
    }
    assert modules(wheel) == {f"erfscope/{name}" for name in files}


def test_a_checkout_without_links_builds_the_same_wheel(wheel, tmp_path):
    other = build("wheel", checkout(tmp_path / "checkout", has_links=False), tmp_path / "wheel")
    assert modules(other) == modules(wheel)


def test_the_command_and_the_api_run_from_the_wheel(python, tmp_path):
    options = ["--weights", "random", "--samples", "1", "--input-size", "64", "--json"]
    assert '"status": "ok"' in run(python.parent / "erfscope", "analyze", "test_resnet", *options, cwd=tmp_path).stdout
    script = (
        "import erfscope; print(erfscope.__file__);print(erfscope.theoretical('test_resnet', weights='random').size_px)"
    )
    file, size = run(python, "-c", script, cwd=tmp_path).stdout.splitlines()
    assert Path(file).is_relative_to(python.parent.parent)
    assert size == str(erfscope.theoretical("test_resnet", weights="random").size_px)


def test_the_pytest_plugin_runs_from_the_wheel(python, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_it(erf_regression):\n"
        "    erf_regression.check('test_resnet', weights='random', samples=4, input_size=64)\n"
    )
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--erf-update", "test_it.py", cwd=tmp_path)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path).stdout


def test_a_users_types_are_checked_against_the_wheel(python, tmp_path):
    for name in ("README", "docs/index"):
        page = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
        (tmp_path / f"{Path(name).name}.py").write_text("".join(blocks))
    (tmp_path / "client.py").write_text(
        "import erfscope\n\n"
        "result: erfscope.Result = erfscope.analyze('resnet18', samples=4)\n"
        "r50: float = float(result['r50'])\n"
        "table: str = erfscope.compare(['resnet18']).table(format='csv')\n"
        "halo: tuple[tuple[int, int], ...] = erfscope.tile('resnet18').halo\n"
    )
    (tmp_path / "tool.py").write_text(
        "from collections.abc import Iterator\n\n"
        "from erfscope.show import Note, Shown, Table, write\n\n\n"
        "class Mine(Shown):\n"
        "    def parts(self) -> Iterator[Table | Note]:\n"
        "        yield Note(text='mine')\n\n\n"
        "write('mine.txt', str(Mine()) + Mine()._repr_html_())\n"
    )
    # What PyTorch's own types are takes a quarter of a minute to read, and none of it is used here.
    others = ["torch", "timm", "captum", "numpy", "cv2", "rich", "PIL"]
    silent = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = True\n" for name in others)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{silent}")
    (tmp_path / "wrong.py").write_text("import erfscope\n\nresult: int = erfscope.analyze('resnet18')\n")
    checked = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--python-executable", python]
    run(*checked, "client.py", "tool.py", "README.py", "index.py", cwd=tmp_path)
    (tmp_path / "wrong_map.py").write_text("import erfscope\n\nerfscope.analyze('resnet18').map.value\n")
    with pytest.raises(AssertionError, match=r'of "ErfMap . Any" has no attribute "value"'):
        run(*checked, "wrong_map.py", cwd=tmp_path)
    with pytest.raises(AssertionError, match='has type "Result"'):
        run(*checked, "wrong.py", cwd=tmp_path)
