"""The scripts of the documentation work, say what failed, and the pages that are committed are theirs."""

from __future__ import annotations

import csv
import importlib.util
import re
import runpy
import types
from pathlib import Path

import pytest
from PIL import Image

import erfscope

DOCS = Path(__file__).resolve().parent.parent / "docs"
BROKEN = """
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        raise RuntimeError("there are no numbers in me")
"""


def script(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gallery():
    return script("gallery")


@pytest.fixture(scope="module")
def how_many():
    return script("how_many_images")


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of the gallery's table."""
    with (folder / "tables" / "gallery.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_gallery_of_a_few_models_has_a_table_a_figure_and_the_reason_for_what_failed(
    gallery, tmp_path, memory_unplanned
):
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN, encoding="utf-8")

    report = gallery.make(["test_resnet", "test_vit", f"{broken}:Net"], tmp_path, samples=1, input_size=96, pixels=500)

    assert [result.ok for result in report] == [True, True, False]
    table = rows(tmp_path)
    assert [row["model"] for row in table] == ["test_resnet", "test_vit", report[2].label]
    assert [row["r50"] for row in table] == [str(report[0]["r50"]), str(report[1]["r50"]), ""]
    assert "there are no numbers in me" in table[2]["remark"]
    with Image.open(tmp_path / "gallery.png") as drawn:
        assert drawn.width == 500


def test_the_committed_table_names_the_models_of_the_script(gallery):
    assert [row["model"] for row in rows(DOCS)] == [gallery.SHORT.get(name, name) for name in gallery.MODELS]
    assert len(gallery.MODELS) == 24
    assert all(row["r50"].endswith(" px") for row in rows(DOCS))


def test_the_committed_explorers_show_the_models_of_the_script_and_stay_small(gallery):
    shown = set(re.findall(r'<iframe src="explorers/(\w+)\.html"', (DOCS / "explore.md").read_text(encoding="utf-8")))
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "explorers").glob("*.html")}
    assert shown == pages.keys() == {"architectures", "trained"}
    for label in gallery.EXPLORED:
        assert f'"label":"{label}"' in pages["architectures"]
    assert "random weights" in pages["architectures"].lower()
    assert '"label":"ImageNet weights"' in pages["trained"]
    assert '"label":"random weights"' in pages["trained"]
    assert max(map(len, pages.values())) < 2_500_000


def test_the_first_page_shows_the_six_by_the_command_of_the_script(gallery):
    command = f"erfscope compare {' '.join(gallery.SIX)} --weights random --samples 8 -o six.png"
    assert command in (DOCS / "index.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_errors_are_those_of_the_runs_and_are_drawn_and_listed(how_many, memory_unplanned):
    measured = how_many.curves(("test_resnet",), (5, 10), (0, 1))

    assert [*measured] == [("test_resnet", name, draws) for draws in how_many.DRAWS for name in how_many.MEASURES]
    runs = [
        erfscope.analyze("test_resnet", weights="random", samples=5, draws=1, input_size=how_many.INPUT, seed=seed)[
            "r50"
        ]
        for seed in (0, 1)
    ]
    mean_square = sum((run.se / run.value) ** 2 for run in runs) / 2
    assert measured["test_resnet", "r50", 1][0] == pytest.approx(100 * mean_square**0.5, rel=1e-3)
    assert how_many.table(measured, (5, 10)).splitlines()[2].startswith("| test_resnet | `r50` | 1 | ")
    (panel,) = how_many.draw(measured, (5, 10)).axes
    assert [len(line.get_xdata()) for line in panel.lines] == [2] * 5  # four curves and the slope


def test_the_committed_table_of_errors_has_the_rows_of_its_script(how_many):
    (found,) = how_many.MARKS.finditer((DOCS / "errors.md").read_text(encoding="utf-8"))
    head, _, *body = (line for line in found[0].splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.split("|")[4:-1]] == [f"{count} images" for count in how_many.IMAGES]
    expected = [
        (model, name, draws) for model in how_many.MODELS for draws in how_many.DRAWS for name in how_many.MEASURES
    ]
    assert [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in body] == [
        (m, f"`{n}`", str(d)) for m, n, d in expected
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers", "check"])
def test_a_picture_of_the_terminal_that_is_committed_has_the_words_of_today(name, tmp_path, monkeypatch):
    screenshots = runpy.run_path(str(DOCS.parent / "examples" / "screenshots.py"))
    monkeypatch.setitem(screenshots["draw"].__globals__, "DOCS", tmp_path)
    drawn, kept = (path.read_text(encoding="utf-8") for path in (screenshots["draw"](name), DOCS / f"{name}.svg"))
    # Numbers may differ between machines.
    assert re.sub(r"[\d.]+", "#", drawn) == re.sub(r"[\d.]+", "#", kept)


def test_what_benchmarks_import_of_one_another_is_there():
    own = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS.parent / "benchmarks").glob("*.py")}
    for name, text in own.items():
        for module, imported in re.findall(r"^from (\w+) import (\(.+?\)|[^(\n]+)$", text, flags=re.M | re.S):
            # Packages that need not be installed are no modules of this folder.
            if module in own:
                there = re.findall(r"^(?:def |class )?(\w+(?:, \w+)*)\b", own[module], flags=re.MULTILINE)
                defined = {each for line in there for each in line.split(", ")}
                asked = re.findall(r"\w+", re.sub(r" as \w+", "", imported))
                assert set(asked) <= defined, (name, module)
