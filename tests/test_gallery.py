"""The gallery: its script works, says what failed, and the page that is committed is the script's."""

from __future__ import annotations

import importlib.util
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


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(page: str) -> list[str]:
    """The models of a page's table."""
    table = page.split("## In numbers")[1].split("## Made by")[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][2:]


def test_a_gallery_of_a_few_models_has_a_page_a_figure_and_the_reason_for_what_failed(gallery, tmp_path, memory_unplanned):
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN, encoding="utf-8")

    report = gallery.make(["test_resnet", "test_vit", f"{broken}:Net"], tmp_path, samples=1, input_size=96, pixels=500)

    assert [result.ok for result in report] == [True, True, False]
    page = (tmp_path / "gallery.md").read_text(encoding="utf-8")
    assert rows(page)[:2] == ["test_resnet", "test_vit"]
    assert "of 3 architectures of timm at **random weights**" in page
    assert f"Not measured, 1 of 3:\n\n* {report[2].label}: {report[2].error}" in page
    assert "there are no numbers in me" in page
    with Image.open(tmp_path / "gallery.png") as drawn:
        assert drawn.width == 500


def test_the_committed_page_names_the_models_of_the_script(gallery):
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert rows(page) == [gallery.SHORT.get(name, name) for name in gallery.MODELS]
    assert len(gallery.MODELS) == 24
    assert "weights random" in page
    assert f"erfscope {erfscope.__version__}" in page


def test_the_first_pages_show_the_six_by_the_command_of_the_script(gallery):
    command = f"erfscope compare {' '.join(gallery.SIX)} --weights random --samples 8 -o six.png"
    for first in (DOCS / "index.md", DOCS.parent / "README.md"):
        assert command in first.read_text(encoding="utf-8").splitlines(), first.name


def test_the_figures_are_small_enough_to_be_committed():
    assert (DOCS / "six.png").stat().st_size < 400_000
    assert (DOCS / "gallery.png").stat().st_size < 600_000
