"""Figures and tables that erfscope writes are compiled into papers by a real LaTeX: nothing is wider than its place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import made_up
import pytest
from test_figures import made, reports
from test_tables import REPORTS

from erfscope import MEASURES, Report
from erfscope.apps.lam.attribution import BlurPath
from erfscope.apps.lam.maps import Lam
from erfscope.apps.lam.records import LamRecord
from erfscope.show import format_table
from erfscope.show.figures import draw
from erfscope.show.figures.canvas import figure_bytes

pytestmark = pytest.mark.more

LONG = "vit_base_patch16_clip_224.laion2b_ft_in12k_in1k"
#: A page of CVPR's with columns of 83 mm, and one of NeurIPS' with lines of 139.7 mm, in LaTeX's own font, which is
#: wider than Times.
PAPERS = {
    "cvpr": r"\documentclass[10pt,twocolumn]{article}\setlength{\textwidth}{174mm}\setlength{\columnsep}{8mm}",
    "neurips": r"\documentclass[10pt]{article}\setlength{\textwidth}{139.7mm}",
}
PREAMBLE = r"\usepackage{graphicx,booktabs}\setlength{\textheight}{228mm}\setlength{\oddsidemargin}{0mm}\hfuzz=0.1pt"


@pytest.fixture(scope="module")
def latex() -> str:
    program = shutil.which("pdflatex")
    if program is None:
        reason = "no LaTeX: pdflatex is not installed (Debian: texlive-latex-base, texlive-latex-recommended)"
        if os.environ.get("ERFSCOPE_LATEX") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def overfull(latex: str, folder: Path, paper: str, body: str) -> list[str]:
    """The boxes that are wider than their place in a paper of this text."""
    document = f"{PAPERS[paper]}{PREAMBLE}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "paper.tex").write_text(document, encoding="utf-8")
    command = [latex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout.decode(errors="replace")[-2000:]
    assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
    log = (folder / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert "Float too large" not in log
    return re.findall(r"Overfull \\hbox.*", log)


def several() -> Report:
    """Models with long names at several layers, one with a convention of its own, and a failure."""
    named = [replace(result, label=LONG, model=LONG) for result in made_up.stages().results]
    return made_up.report(*named[:4], made_up.broken(), replace(made_up.result(), convention="luo"))


TABLES = {name: getattr(made_up, name) for name in ("four", "stages", "inner", "fallback")} | {"several": several}


def test_a_box_that_is_too_wide_is_found_and_every_measure_and_name_can_be_compiled(latex, tmp_path):
    wide = made_up.four().table(["r50", "r90"], format="latex").replace("table*", "table")
    assert overfull(latex, tmp_path, "cvpr", wide)
    for report in REPORTS.values():
        overfull(latex, tmp_path, "neurips", report().table(list(MEASURES), format="latex"))
    overfull(latex, tmp_path, "neurips", REPORTS["hostile"]().table(format="latex"))


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_wider_than_a_column(latex, tmp_path, paper, name):
    assert overfull(latex, tmp_path, paper, TABLES[name]().table(format="latex")) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_no_table_of_attribution_maps_is_wider_than_a_page(latex, tmp_path, paper):
    sizes = {"di": 12.3, "r50_px": 10.25, "r90_px": 31.5, "area_px": 1234.0, "completeness": 1.02, "trf": "127x127"}
    names, images = (LONG, "SwinIR", "a model & its shuffled_weights, shuffled"), [f"{n}.png" for n in range(4)]
    maps = [LamRecord(model=name, image=image, window=(110, 150, 16), **sizes) for name in names for image in images]
    table = format_table(Lam(maps=maps, path=BlurPath()).table(), "latex")
    assert overfull(latex, tmp_path, paper, table) == []


@cache
def figures(kind: str) -> list[tuple[str, bytes]]:
    """The files of a folder, but for those that LaTeX does not take."""
    results = [made("one"), made(LONG)] if kind == "panel" else reports()[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            draw, "figure_bytes", lambda figure, suffix: figure_bytes(figure, suffix) if suffix == ".pdf" else b""
        )
        return list(draw.folder_figures(results, kind=kind))


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("kind", ["panel", "profile", "depth", "positions"])
def test_no_figure_is_wider_than_its_place(latex, tmp_path, paper, kind):
    for name, content in figures(kind):
        (tmp_path / name).write_bytes(content)
    assert overfull(latex, tmp_path, paper, (tmp_path / "figure.tex").read_text(encoding="utf-8")) == []


def test_a_figure_and_a_table_fit_into_one_paper(latex, tmp_path):
    report = Report(results=(made("one"), made("two")))
    report.save(tmp_path / "erf")
    report.save(tmp_path / "erf.tex")
    for image in (tmp_path / "erf").glob("*.pdf"):
        shutil.copy(image, tmp_path)
    for paper in PAPERS:
        assert overfull(latex, tmp_path, paper, r"\input{erf/figure.tex}\input{erf.tex}") == []
