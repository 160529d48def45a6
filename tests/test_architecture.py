"""The rooms of the project: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tokenize
import traceback
from collections import Counter
from pathlib import Path

import pytest


def is_linked(path: Path) -> bool:
    """Whether a file is reached through a link: ``erfscope/adapters`` and ``erfscope/cli`` are those beside it."""
    return any(parent.is_symlink() for parent in path.parents)


ROOT = Path(__file__).resolve().parent.parent
FILES = [
    path for folder in ("erfscope", "adapters", "cli") for path in (ROOT / folder).rglob("*.py") if not is_linked(path)
]
CLI = [path for path in FILES if path.relative_to(ROOT).parts[0] == "cli"]
CORE = [path for path in FILES if path.relative_to(ROOT).parts[0] == "erfscope"]
#: Where modules are found by name: public names, sources of models, figures, and studies.
BY_NAME = {
    "erfscope/core/values/lazy.py",
    "adapters/__init__.py",
    "adapters/sources/kinds.py",
    "erfscope/show/figures/kinds.py",
    "erfscope/apps/lab/studies/__init__.py",
}
#: The same for optional packages, and for the modules of users.
OPTIONAL = {"adapters/libraries.py", "adapters/sources/factory.py", "cli/doctor.py"}
#: Functions of more statements, or of more than five parameters before the star. Their number may only shrink.
STATEMENTS = 31
LARGE = 37
#: Names that several classes have: a callback is called alike for Lightning and for transformers.
TWICE = 1


@functools.cache
def parts_of(path: Path) -> list[ast.AST]:
    """What a file is made of."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@functools.cache
def imports(path: Path) -> set[str]:
    """Names that a file imports, inside functions too."""
    found: set[str] = set()
    for node in parts_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def named(paths) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.slow
def test_imports_go_one_way_and_in_no_circle():
    """The contracts of pyproject.toml."""
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0


def test_every_room_says_what_it_holds_and_what_it_may_import():
    for path in (path for path in FILES if path.name == "__init__.py" and path.parent != ROOT / "erfscope"):
        assert "\n\nMay import: " in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""), path


def test_the_table_for_newcomers_names_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.partition("## Rooms")[2].partition("## ")[0].splitlines()
    named_there = {name for row in rows if row.startswith("|") for name in re.findall(r"`([\w/]+)`", row)}
    package = ROOT / "erfscope"
    rooms = [each.parent for depth in ("*", "core/*", "apps/*") for each in package.glob(f"{depth}/__init__.py")]
    assert {room.name for room in rooms} <= {name.removeprefix("core/") for name in named_there} | {"core"}


@pytest.mark.slow
def test_functions_stay_short_and_take_few_parameters():
    found = []
    for path in FILES:
        for node in parts_of(path):
            if isinstance(node, ast.FunctionDef):
                statements = sum(isinstance(part, ast.stmt) for part in ast.walk(node)) - 1
                if statements > STATEMENTS or len(node.args.posonlyargs) + len(node.args.args) > 5:
                    found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert len(found) <= LARGE, found


@pytest.mark.slow
def test_few_classes_share_a_name_and_none_that_of_the_face_of_what_shows():
    import erfscope.show

    names = Counter(node.name for path in FILES for node in parts_of(path) if isinstance(node, ast.ClassDef))
    found = {name for name, count in names.items() if count > 1}
    assert not found & set(erfscope.show.__all__)
    assert len(found) <= TWICE, found


def test_modules_are_found_by_name_in_few_places():
    found = {path for path in FILES if "import_module(" in path.read_text(encoding="utf-8")}
    assert named(found) <= BY_NAME | OPTIONAL


@pytest.mark.slow
@pytest.mark.parametrize("package", ["timm", "rich_click", "torchvision", "transformers"])
def test_the_core_knows_no_library_of_models_and_no_command_line(package):
    found = {path for path in CORE if any(name.split(".")[0] == package for name in imports(path))}
    commands = {path for path in CORE if path.name == "command.py" or path.parts[-2] == "command"}
    assert named(found - commands) <= {"erfscope/apps/monitor/transformers.py"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("captum", {"erfscope/core/run/attribution/captum_methods.py", "erfscope/apps/lab/studies/trust.py"}),
        (
            "matplotlib",
            {path.relative_to(ROOT).as_posix() for path in FILES if path.parts[-2] == "figures"}
            | {"erfscope/apps/lam/figure.py", "erfscope/apps/tile/figure.py"},
        ),
        ("cv2", {"erfscope/show/view/terminal/heatmap.py", "cli/doctor.py"}),
        ("jinja2", {"erfscope/show/view/page.py"}),
        ("starlette", {"erfscope/apps/explore/server.py"}),
        ("uvicorn", {"erfscope/apps/explore/server.py"}),
        (
            "rich",
            {
                path.relative_to(ROOT).as_posix()
                for path in FILES
                if path.parts[-2] in ("terminal", "command") or path.name == "command.py" or path in CLI
            }
            | {"erfscope/apps/gate/printing.py"},
        ),
    ],
)
def test_heavy_packages_have_one_door(package, homes):
    found = {p.relative_to(ROOT).as_posix() for p in FILES if any(name.split(".")[0] == package for name in imports(p))}
    assert found <= homes


#: The modules that may name what another library calls private.
INTERNALS = {"erfscope/core/system/torch_internals.py", "adapters/timm_internals.py"}
#: What the standard library's named tuples offer to everybody.
OFFERED = {"_replace", "_fields", "_asdict"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OFFERED


def own_names() -> set[str]:
    """Private names that erfscope itself gives, to functions, classes and attributes."""
    found: set[str] = set()
    for path in FILES:
        for node in parts_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def private_names(path: Path) -> set[str]:
    """Private names that a file reaches: by import, as an attribute, or by a text given to ``getattr`` and its like."""
    found: set[str] = set()
    for node in parts_of(path):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            if not module.startswith("erfscope"):
                found |= {part for alias in node.names for part in (*module.split("."), *alias.name.split("."))}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("getattr", "setattr", "hasattr", "delattr", "attrgetter", "import_module"):
                texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                found |= {part for text in texts if isinstance(text, str) for part in text.split(".")}
    return {name for name in found if is_private(name)}


@pytest.mark.slow
def test_private_names_of_other_libraries_stand_in_one_module_a_library():
    own = own_names()
    found = {path.relative_to(ROOT).as_posix(): names for path in FILES if (names := private_names(path) - own)}
    assert {path: names for path, names in found.items() if path not in INTERNALS} == {}
    assert found.keys() == INTERNALS, "the walk must find those that there are"


@pytest.mark.slow
def test_no_module_has_grown_two_subjects():
    """Statements and docstrings are counted, so that a narrower page makes no file longer."""
    lengths = {}
    for path in FILES:
        with tokenize.open(path) as file:
            lengths[path.relative_to(ROOT).as_posix()] = sum(
                token.type == tokenize.NEWLINE for token in tokenize.generate_tokens(file.readline)
            )
    assert {name: length for name, length in lengths.items() if length > 270} == {}


def test_few_functions_lie_between_the_public_one_and_autograd(monkeypatch):
    """sweep, _sweep, measure_rows, measure_layer, measure, accumulate, contributions, backward."""
    import torch

    import erfscope

    stacks = []
    gradient = torch.autograd.grad

    def watched(*given, **words):
        codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1))]
        last = next(i for i, code in enumerate(codes) if code.co_qualname == "sweep")
        stacks.append(
            [code.co_qualname for code in codes[: last + 1] if Path(code.co_filename).resolve().is_relative_to(ROOT)]
        )
        return gradient(*given, **words)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    erfscope.sweep(torch.nn.Conv2d(3, 4, 3), images=torch.randn(1, 3, 16, 16), measures="r50")
    assert stacks
    assert min(map(len, stacks)) <= 8, stacks


def test_what_measures_compares_and_gives_sides_has_one_name():
    """Functions of the library; a command is called after the function that does its work."""
    named = Counter(
        node.name
        for path in CORE
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    )
    assert {name: named[name] for name in ("compare", "measure", "sides_of")} == {
        "compare": 1,
        "measure": 1,
        "sides_of": 1,
    }
