"""The rooms of the project: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = [path for path in (ROOT / "erfscope").rglob("*.py") if not {"adapters", "cli"} & set(path.relative_to(ROOT / "erfscope").parts[:1])]
OUTWARD = ("erfscope.adapters", "erfscope.cli", "timm", "rich", "rich_click", "rich_pixels")
#: Results import their rich display late: the one exception.
LATE = {"erfscope/result.py", "erfscope/report.py"}


def imports(path: Path, *, late: bool = True) -> set[str]:
    """Names that a file imports, inside functions too where ``late``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if late else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_does_not_look_outward(path):
    name = path.relative_to(ROOT).as_posix()
    if name.startswith(("erfscope/api/", "erfscope/studies/")) or name in ("erfscope/__main__.py", "erfscope/__init__.py"):
        return
    outward = {found for found in imports(path, late=name not in LATE) if found.startswith(OUTWARD)}
    assert outward == set(), name


def test_adapters_do_not_know_the_command_line():
    for path in (ROOT / "adapters").rglob("*.py"):
        assert not {found for found in imports(path) if found.startswith(("erfscope.cli", "rich", "erfscope.api"))}, path.name


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("captum", {"erfscope/attribution/captum_methods.py"}),
        ("matplotlib", {path.relative_to(ROOT).as_posix() for path in (ROOT / "erfscope" / "figures").glob("*.py")}),
        ("cv2", {"cli/heatmap.py", "cli/doctor.py"}),
    ],
)
def test_heavy_packages_have_one_door(package, homes):
    files = [*CORE, *(ROOT / "adapters").rglob("*.py"), *(ROOT / "cli").glob("*.py")]
    found = {p.relative_to(ROOT).as_posix() for p in files if any(name.split(".")[0] == package for name in imports(p))}
    assert found <= homes


def test_no_module_has_grown_two_subjects():
    files = [*CORE, *(ROOT / "adapters").rglob("*.py"), *(ROOT / "cli").glob("*.py")]
    assert {p.name: n for p in files if (n := len(p.read_text(encoding="utf-8").splitlines())) > 350} == {}


@pytest.mark.parametrize("statement", ["import erfscope", "import erfscope.cli.main", "from erfscope import FallbackWarning"])
def test_importing_loads_neither_torch_nor_timm(statement):
    code = f"{statement}\nimport sys\nprint(sorted({{'torch', 'timm', 'numpy', 'captum', 'matplotlib'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_had():
    import erfscope

    for name in erfscope.__all__:
        assert getattr(erfscope, name) is not None
