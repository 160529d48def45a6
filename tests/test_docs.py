"""The documentation is true: its code runs, its generated parts are those of the code, and its site builds without a
warning."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich_click as click
import torch
from PIL import Image
from spared import opened_once  # noqa: F401

import erfscope
from erfscope import Options
from erfscope.cli.commands import OWN, import_command
from erfscope.cli.main import cli, main
from erfscope.core import Building

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
FENCE = re.compile(
    r"^(?:<!-- not run:(?P<reason>[^\n]*)-->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```", flags=re.DOTALL | re.MULTILINE
)
#: The code, each file once: ``erfscope/adapters`` and ``erfscope/cli`` are links to the folders beside it.
SOURCES = [
    path
    for room in ("erfscope", "adapters", "cli")
    for path in sorted((ROOT / room).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
]
#: Folders that a page may name paths from.
ROOMS = list(dict.fromkeys([ROOT, ROOT / "erfscope", *(path.parent for path in SOURCES)]))
#: What docstrings refer to.
REFERENCE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([\w.]+)`")
#: Large models of the pages -> small ones of the same kind with the same names of layers.
SMALLER = {
    "resnet18": "test_resnet",
    "resnet50": "test_resnet",
    "convnext_tiny": "test_convnext",
    "swin_tiny_patch4_window7_224": "test_vit2",
    "vit_small_patch16_224": "test_vit",
    "mixer_s16_224": "test_mambaout",
    "sequencer2d_s": "test_efficientnet",
}
MODELS = """
from torch import nn

def build(depth=2):
    layers = [nn.Conv2d(3, 8, 3, 2, 1)]
    for _ in range(depth):
        layers += [nn.GELU(), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*layers)
"""
#: What commands take where a page leaves it open. With fewer than four pictures there is no error bar, and no check
#: could tell.
QUICK = {
    "ERFSCOPE_SAMPLES": "2",
    "ERFSCOPE_CHECK_SAMPLES": "4",
    "ERFSCOPE_INPUT_SIZE": "96",
    "ERFSCOPE_MEASURES": "r50,context_r50,r90,far_mass,center_share,erf_trf",
    "NO_COLOR": "1",
}
#: A model of the pages whose example inputs say how large they are.
HAS_ITS_SIZE = "stereo_net.py:build"
#: The README's check of everything that is listed.
CHECKS = """
[[tool.erfscope.check]]
name = "test_resnet"
model = "test_resnet"
weights = "random"
"""


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    code: str
    #: Why it is not run; None if it is.
    reason: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(m["language"], m["code"], m["reason"] if m["reason"] is None else m["reason"].strip())
        for m in FENCE.finditer(text)
    ]


def smaller(text: str) -> str:
    return re.sub(rf"\b({'|'.join(SMALLER)})\b(?!\.\w)", lambda found: SMALLER[found[1]], text)


def steps(code: str) -> list[str]:
    """The commands of a bash block, one by one, without comments and without variables that are set for one alone."""
    lines = re.sub(r"\\\n\s*", "", code).splitlines()
    parts = [part.strip() for line in lines if not line.startswith("#") for part in line.split(" && ")]
    return [re.sub(r"^(?:[A-Z_]+=\S+ +)+", "", part) for part in parts if part]


def commands(code: str) -> list[list[str]]:
    """Words of every erfscope command of a bash block, those that a launcher starts included."""
    found = [re.fullmatch(r"(?:exec |torchrun .*-m )?erfscope (.*)", step) for step in steps(code)]
    return [shlex.split(each[1], comments=True) for each in found if each]


def run(words: list[str]) -> int:
    """Exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


def promised(words: list[str], folder: Path) -> int:
    """The exit code that the pages promise: only a check that has nothing to compare with is no 0."""
    first = words[0] == "check" and not (folder / "erf-baseline.json").exists() and "--allow-new" not in words
    return 3 if first else 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the images, models and weights that the pages speak of; commands take little unless told
    otherwise."""
    monkeypatch.chdir(tmp_path)
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    # Planning memory takes longer than measuring small models, and has tests of its own.
    monkeypatch.setattr("erfscope.core.run.engine.batch.needs", lambda plan: [])
    for name in ("photo.jpg", "x.png", "photos/a.jpg", "photos/b.jpg", "val/a.png", "examples/leaves.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "mymodels.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    for block in blocks(page("inputs")):  # the models of that page, which others measure too
        if named := re.match(r"# (\w+\.py)\n", block.code):
            (tmp_path / named[1]).write_text(block.code, encoding="utf-8")
    numbers = np.random.default_rng(0)
    for name, shape in {"scan": (16, 32, 32), "tone": (800,), "image": (3, 80, 96)}.items():
        np.save(tmp_path / f"{name}.npy", numbers.normal(size=shape).astype(np.float32) / 4)
    (tmp_path / "walk").mkdir()
    for frame in range(8):
        Image.fromarray(numbers.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(tmp_path / "walk" / f"{frame}.png")
    (tmp_path / "pyproject.toml").write_text(CHECKS, encoding="utf-8")
    (tmp_path / "weights").mkdir()
    built: dict[str, Any] = {}
    exec(MODELS, built)
    torch.save(built["build"]().state_dict(), tmp_path / "weights" / "best.pth")
    torch.save(built["build"](depth=4).state_dict(), tmp_path / "best.pth")
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 2):
        torch.save(built["build"]().state_dict(), tmp_path / "checkpoints" / f"ckpt-{step}.pt")
    return tmp_path


@pytest.fixture
def loggers(monkeypatch):
    """Stand-ins for three loggers, with the parameters of the real ones, that keep what they are given."""
    kept: dict[str, dict[str, float]] = {"tensorboard": {}, "wandb": {}, "mlflow": {}}

    class SummaryWriter:  # torch/utils/tensorboard/writer.py
        def add_scalar(
            self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False
        ):
            kept["tensorboard"][tag] = scalar_value

    class Run:  # docs.wandb.ai, Run.log
        def log(self, data, step=None, commit=None):
            kept["wandb"] |= data

    def log_metrics(
        metrics, step=None, synchronous=None
    ):  # mlflow/tracking/fluent.py; names: mlflow/utils/validation.py
        assert all(re.fullmatch(r"[/\w.\- ]+", name) for name in metrics)
        kept["mlflow"] |= metrics

    modules = {
        "torch.utils.tensorboard": {"SummaryWriter": SummaryWriter},
        "wandb": {"init": lambda project=None: Run()},
        "mlflow": {"log_metrics": log_metrics},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return kept


@pytest.mark.slow
@pytest.mark.usefixtures("figures_undrawn", "opened_once")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_in_order(page, folder, loggers, monkeypatch, install):
    namespace: dict[str, Any] = {}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason is not None:
            continue
        code = smaller(block.code)
        named = re.match(r"# ([\w./]+\.(?:py|toml))\b", code)
        if named:
            (folder / named[1]).write_text(code, encoding="utf-8")
            if "entry-points" in code:
                install(folder, tomllib.loads(code)["project"]["entry-points"]["erfscope.commands"])
        elif block.language == "python":
            exec(compile(code, page.name, "exec"), namespace)
        elif block.language == "bash":
            for words in commands(code):
                expected = promised(words, folder)
                if words[0] == "explore":  # a page of fewer units
                    words += ["--grid", "2"]
                with monkeypatch.context() as patch:
                    if HAS_ITS_SIZE in words:
                        patch.delenv("ERFSCOPE_INPUT_SIZE")
                    assert run(words) == expected, f"{page.name}: erfscope {shlex.join(words)}"


def test_every_line_of_a_bash_block_is_a_command_of_ours_or_named_here():
    """So that no command escapes the test above, and the one below, by standing behind another."""
    known = r"pip install |python3 -m venv |\. \.venv/|pytest -q |pre-commit install-hooks"
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.language == "bash":
                others = [step for step in steps(block.code) if not re.match(known, step)]
                assert len(commands(block.code)) == len(others), (page.name, others)


def parse(words: list[str]) -> None:
    """Read a command as the program does, without running it."""
    context = click.Context(cli, info_name="erfscope")
    name, command, rest = cli.resolve_command(context, words)
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_are_not_run_or_stand_in_a_sentence_are_understood(page, folder):
    text = page.read_text(encoding="utf-8")
    shown = [block.code for block in blocks(text) if block.reason is not None and block.language == "bash"]
    for words in (words for code in shown for words in commands(code)):
        parse([re.sub(r"\$\w+", "1", word) for word in words])
    for span in re.findall(r"`(erfscope [a-z][^`]*)`", re.sub(FENCE, "", text).replace("\n", " ")):
        # A span may name the command alone, or an option of it, and a stored report that is not here.
        with contextlib.suppress(click.MissingParameter, erfscope.ErfscopeError):
            parse(shlex.split(span.partition(" > ")[0])[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_that_a_page_names_exist(page):
    known = {text for entry in OWN.values() for each in import_command(entry).params for text in each.opts}
    spans = re.findall(r"`(--[a-z][\w-]*)", re.sub(FENCE, "", page.read_text(encoding="utf-8")))
    of_others = {"--help", "--help-all", "--update-golden", "--force-regen"}  # the last two are pytest's
    assert {*spans} - known - of_others == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_and_tests_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\b(?:python|pytest) ((?:benchmarks|docs|examples|tests)/[\w/]+\.py)", text)
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "benchmarks/zoo.md"])
def test_links_into_the_documentation_lead_to_pages_and_headings(name):
    """Those between the pages are checked where the site is built."""
    source = ROOT / name
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", source.read_text(encoding="utf-8")):
        linked = (source.parent / target).resolve() if target else source
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles]


def test_the_pages_are_few_and_short():
    assert len(DOCS) <= 25
    words = {page.stem: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert {stem: count for stem, count in words.items() if count > 1500 and stem not in ("theory", "graph")} == {}


def test_pictures_of_the_documentation_are_shown():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = [path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg")]
    assert [name for name in pictures if name not in text] == []


# --- generated parts ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "hooks" / "generated.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(ROOT / "docs" / "hooks"))


@pytest.mark.slow
def test_generated_parts_of_pages_and_tables_are_those_of_the_code(generated, request):
    expected = generated.expected()
    if request.config.getoption("--update-golden"):
        generated.write()
    stale = [path.name for path, text in expected.items() if not path.is_file() or path.read_text("utf-8") != text]
    assert stale == [], "write them anew: python docs/hooks/generated.py"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """A part of a page, up to the next one."""
    return re.split(r"^## ", page(name).split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def table(name: str) -> list[dict[str, str]]:
    """The rows of a file of docs/tables."""
    with (ROOT / "docs" / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_on_python_has_every_public_name_and_what_it_is_and_the_table_of_options_every_keyword():
    text = page("api")
    named = re.findall(r"^::: erfscope\.([\w.]+)", text, flags=re.MULTILINE)
    assert {*erfscope.__all__} - {"Options"} <= {name.rpartition(".")[2] for name in named}
    assert {*re.findall(r"\(#erfscope\.([\w.]+)\) \| \w", text)} == {*named}
    said = {row["keyword"]: row["what it does"] for row in table("options")}
    assert all(said[keyword] for keyword in (*Options.__annotations__, *Building.__annotations__))


def test_the_table_of_studies_has_every_claim_of_the_kept_runs():
    told = [[row["published"], row["ours"], row["verdict"]] for row in table("studies")]
    kept = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in (ROOT / "erfscope/apps/lab/studies/kept").glob("*.json")
    ]
    claims = [[each["published"], each["ours"], each["verdict"]] for found in kept for each in found["claims"]]
    assert sorted(told) == sorted(claims)


@pytest.mark.slow
def test_the_table_of_fields_has_every_field_of_a_report():
    document = erfscope.sweep("test_resnet", weights="random", samples=1, measures="r50").to_json()
    fields = {row["field"] for row in table("report_fields")}
    assert {f"results[].{name}" for result in document["results"] for name in result} <= fields


def test_every_finding_is_explained():
    sources = [*(ROOT / "erfscope").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    codes = {
        code for file in sources for code in re.findall(r'Finding\(\s*code="(\w+)"', file.read_text(encoding="utf-8"))
    }
    table = page("pitfalls").split("\n## Findings")[1]
    assert len(codes) > 15
    assert (
        set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))))
        >= codes
    )


# --- scalars --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scalars_are_finite_floats_under_the_prefix_and_equal_the_measures():
    result = erfscope.analyze("test_resnet", weights="random", samples=2)
    scalars = result.scalars("probe/")
    assert all(type(value) is float and math.isfinite(value) for value in scalars.values())
    numbers = {name: m.value for name, m in result.measures.items() if isinstance(m.value, float)}
    assert scalars == {f"probe/{name}": value for name, value in numbers.items()}
    assert isinstance(result["best_shape"].value, str)
    assert "probe/best_shape" not in scalars
    assert result.scalars() == {f"erf/{name}": value for name, value in numbers.items()}


@pytest.mark.slow
def test_scalars_leave_out_what_does_not_exist():
    result = erfscope.analyze("test_vit", weights="random", samples=2, measures="r50,erf_trf")
    assert result["erf_trf"].value is None  # its field is global
    assert list(result.scalars()) == ["erf/r50"]


@pytest.mark.slow
def test_the_one_liners_log_every_scalar(folder, loggers):
    namespace: dict[str, Any] = {}
    for block in (block for block in blocks(section("runs", "During training")) if block.language == "python"):
        exec(compile(block.code, "runs.md", "exec"), namespace)
    expected = namespace["result"].scalars()
    assert set(expected) == {"erf/r50", "erf/r90", "erf/far_mass"}
    assert loggers == {"tensorboard": expected, "wandb": expected, "mlflow": expected}


# --- the site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return target


@pytest.mark.more
def test_the_site_builds_without_a_warning_and_has_every_page(site):
    assert {file.stem for file in site.glob("*.html")} == {*(page.stem for page in DOCS), "404", "atlas"}


@pytest.mark.more
def test_the_site_asks_nobody_and_knows_no_machine(site):
    for file in site.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(https?:|//)[^\"'> ]*", text)
        assert not loaded, file.name
        assert str(ROOT) not in text
        assert str(Path.home()) not in text


@pytest.mark.more
def test_search_works_from_a_folder(site):
    """Its index is a script, and the frame that takes the place of a worker is loaded before it."""
    assert "halo" in (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert (site / "iframe-worker.js").is_file()
    assert '<script src="iframe-worker.js">' in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.more
def test_generated_parts_and_docstrings_reach_the_site(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    assert "Measure how far one unit of a model looks" in text
    assert not re.search(r":(?:func|class|meth):", text)
    assert 'id="erfscope.analyze"' in text
    assert "smallest r" in (site / "measures.html").read_text(encoding="utf-8")
    assert (site / "tables" / "options.csv").is_file()


def module_of(path: Path) -> types.ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "erfscope" else ("erfscope", *parts)
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def has(owner: object, names: list[str]) -> bool:
    """Whether a module or a class has a name of names; fields of dataclasses may be there as annotations alone."""
    for name in names:
        if isinstance(owner, type) and any(name in vars(kind).get("__annotations__", {}) for kind in owner.__mro__):
            return True
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def is_found(target: str, module: types.ModuleType) -> bool:
    """Whether what a docstring of a module refers to exists: by its whole name, or in the module, or in one of its
    classes."""
    names = target.split(".")
    for end in range(len(names), 0, -1):
        with contextlib.suppress(ImportError):
            if has(importlib.import_module(".".join(names[:end])), names[end:]):
                return True
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return any(has(owner, names) for owner in (module, *own))


@pytest.mark.slow
def test_docstrings_refer_to_what_exists():
    found = {path: REFERENCE.findall(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert sum(map(len, found.values())) > 100
    missing = [
        (path.name, target)
        for path, targets in found.items()
        for target in targets
        if not is_found(target, module_of(path))
    ]
    assert missing == []


def test_the_page_for_contributors_names_files_that_exist():
    """By their path from the root or from ``erfscope/``, or within the room that the sentence is about."""
    text = re.sub(
        r"^```.*?^```", "", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    paths = [word for word in words if "/" in word or re.fullmatch(r"[\w*]+\.(py|pyi|json|md|toml|txt)", word)]
    assert len(paths) > 50
    assert [path for path in paths if not any(next(room.glob(path.rstrip("/")), None) for room in ROOMS)] == []
