"""The study of theorems: it covers the theory, it can fail, its statistics are right, and what the terminal shows of
it."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from erfscope import Influence, influence, studies, theory
from erfscope.apps.lab.command import study_view
from erfscope.apps.lab.studies import theorems
from erfscope.apps.lab.studies.study import StudyOptions, claim
from erfscope.apps.lab.studies.theorems import CASES, draws_of
from erfscope.apps.lab.studies.theorems.case import LIMIT, CaseOutcome, Draws, expects, grouped, worst
from erfscope.core import ErfscopeError
from erfscope.show import Column, Table, format_table, rows_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "erfscope/apps/lab/studies/theorems"
NOT_CLAIMS = "boundary_bias chebyshev_polynomials compare degrees gaussian_luo_size gaussian_mass_radius"
NOT_CLAIMS += " linear_gcn_influence mlp_slopes relu_gates strided_dilated_variance symmetric_adjacency top_k_nodes"


@pytest.fixture(scope="module")
def quick() -> studies.StudyResult:
    return studies.run("theorems", effort="quick")


def case(name: str) -> theorems.Case:
    return next(entry for entry in CASES if entry.name == name)


def run(name: str, seed: int = 0) -> CaseOutcome:
    asked = StudyOptions(seed=seed, effort="quick")
    return case(name).run(draws_of(case(name), asked))


@pytest.mark.slow
def test_every_claim_holds_and_is_shown_whole_and_found_by_name(quick, check_shown, monkeypatch):
    assert [row.name for row in quick if not row.passed] == []
    assert (quick.passed, quick.conclusion) == (True, "3 of 3 claims reproduced.")
    for row in quick:
        if row.kind == "closed form":
            assert row.error <= row.limit == 1e-10
        elif row.kind == "expectation":
            assert abs(row.z) < 4
            assert row.samples >= 100
        else:
            assert row.error <= row.limit <= 0.05
    assert quick["gin"].source.startswith("Xu et al.")
    with pytest.raises(ErfscopeError, match=r"unknown row 'gins' in the study theorems.*did you mean 'gin'"):
        quick["gins"]
    check_shown(quick)
    monkeypatch.setattr(studies.StudyResult, "figure", lambda *_: None)  # drawn once
    check_shown(quick, 120)


def test_every_closed_form_of_the_theory_is_checked():
    used = {
        node.attr
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "theory"
    }
    left = set(theory.__all__) - used - {*NOT_CLAIMS.split()}
    assert [name for name in left if not name.startswith("sample_") and not name[0].isupper()] == []


CLOSED_FORMS = "linear_gcn relu_gcn mean_gcn_with_self_term gin chebnet chebygin gatv2 dot_attention softmax_attention"
CLOSED_FORMS += " nonlocal_block multi_head_attention top_k_pooling threshold_pooling attention_reweighting"


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSED_FORMS.split())
def test_a_closed_form_that_is_off_by_a_millionth_in_one_entry_fails(name, monkeypatch):
    right = getattr(theory, name)

    def wrong(*given, **words):
        found = right(*given, **words)
        found[np.unravel_index(np.abs(found).argmax(), found.shape)] *= 1 + 1e-6
        return found

    monkeypatch.setattr(theory, name, wrong)
    assert not run(name).passed


@pytest.mark.slow
def test_a_mean_that_leaves_the_own_term_out_fails(monkeypatch):
    monkeypatch.setattr(theory, "dot_attention_mean", lambda c, q, k, v: np.trace(q @ k.T) * v.sum() * c)
    assert abs(run("dot_attention_mean").z) > 4


def test_a_case_that_breaks_fails_in_its_row_and_the_others_go_on(monkeypatch):
    def broken(draws: Draws) -> CaseOutcome:
        raise RuntimeError("no such luck")

    kept = (theorems.Case(name="broken", source="nowhere", kind="property", run=broken), case("gin"))
    monkeypatch.setattr(theorems, "CASES", kept)
    result = studies.run("theorems")
    assert (result["gin"].passed, result["broken"].passed, result.passed) == (True, False, False)
    assert result["broken"].problem == "RuntimeError: no such luck"
    assert result.conclusion.endswith("1 not reproduced. Failed: broken (RuntimeError: no such luck).")
    assert [each.verdict for each in result.claims] == ["reproduced", "not reproduced"]


@pytest.mark.slow
def test_the_numbers_of_a_case_depend_on_the_seed_and_its_name_alone_and_cases_that_choose_hold_for_another():
    def drawn(name: str, seed: int) -> list[float]:
        return draws_of(case(name), StudyOptions(seed=seed)).normal(3).tolist()

    assert drawn("gin", 1) == drawn("gin", 1)
    assert drawn("gin", 1) != drawn("gin", 2)
    assert drawn("gin", 1) != drawn("chebnet", 1)
    assert run("gatv2", seed=5) == run("gatv2", seed=5)
    for name in ("dead_targets, no gradient", "threshold_pooling", "top_k_pooling", "fully_connected_gcn"):
        assert run(name, seed=1).passed, name


def test_an_outcome_passes_within_its_limit_only_by_the_entry_that_is_furthest_off():
    for right in (CaseOutcome(error=LIMIT), CaseOutcome(z=-3.9)):
        assert right.passed
    nan = CaseOutcome(error=math.nan), CaseOutcome(z=math.nan)
    for wrong in (CaseOutcome(error=2 * LIMIT), CaseOutcome(z=-4.1), CaseOutcome(), *nan):
        assert not wrong.passed
    assert worst(CaseOutcome(error=1e-3, limit=1), CaseOutcome(error=1e-5)).error == 1e-5
    assert worst(CaseOutcome(z=1), CaseOutcome(z=-2), CaseOutcome(z=1.5)).z == -2
    assert worst(CaseOutcome(z=1), CaseOutcome(z=math.nan)).passed is False
    told = {"convention": "signed", "outputs": (0,), "n_outputs": 1}
    measured = Influence(values=[[1.0, 2, 3]], se=[[0.1, 0.5, 0]], n_samples=40, **told)
    outcome = expects(measured, [[1.05, 3, 3]], each=16)
    assert (outcome.z, outcome.samples) == (-2, 640)
    assert expects(measured, [[1, 2, 3.5]]).z == -math.inf
    with pytest.raises(ValueError, match="two samples"):
        expects(Influence(values=[[1.0]], **told), [[1]])


def test_samples_side_by_side_have_the_mean_influence_of_those_one_by_one():
    draws = draws_of(case("gin"), StudyOptions())
    x, w = draws.normal(6, 4, 3), draws.normal(3, 2)
    fn = lambda nodes: torch.tanh(nodes @ w).cumsum(-2)  # noqa: E731
    together = influence(*grouped(fn, x, 3), "signed")
    np.testing.assert_allclose(together.values, influence(fn, x, "signed").values, rtol=1e-12, atol=1e-14)
    assert together.n_samples == 2


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("theorem", {}, r"unknown study 'theorem'.*did you mean 'theorems'"),
        ("theorems", {"seed": -1}, "the seed is -1"),
        ("luo-growth", {"effort": "medium"}, "medium"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(name, more, words):
    with pytest.raises(ErfscopeError, match=words):
        studies.run(name, **more)


@pytest.mark.slow
def test_tables_have_a_line_per_row_in_every_format_and_json_the_numbers_in_full(quick):
    markdown = quick.table().splitlines()
    assert re.match(r"\| -+ \| -+ \| -+: \|", markdown[1])
    assert len({line.count("|") for line in markdown}) == 1
    assert len(markdown) == len(quick) + 2
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(quick.table(format="csv")))}
    assert list(rows) == [row.name for row in quick]
    assert float(rows["gin"]["error"]) == quick["gin"].error
    latex = quick.table(format="latex")
    assert re.search(r"linear\\_gcn +& Nicolicioiu \\& Duta, Thm 1, 4 \(E0-01\)", latex)
    with pytest.raises(ErfscopeError, match="unknown table format 'html'"):
        quick.table(format="html")
    columns = (Column(name="a", kind="number"),)
    for cell, format_, text in (("x|y", "markdown", "| a |\n| --: |\n| x\\|y |\n"), ("=1+1", "csv", "a\n'=1+1\n")):
        assert format_table(Table(columns=columns, rows=rows_of([[cell]])), format_) == text
    found = json.loads(json.dumps(quick.to_json(), allow_nan=False))
    assert (found["schema"], found["study"], found["passed"]) == ("erfscope.study/1", "theorems", True)
    assert found["settings"] == {"seed": 0, "effort": "quick", "data": None}
    assert {row["name"]: row["error"] for row in found["rows"]}["gin"] == quick["gin"].error
    assert set(found["environment"]["versions"]) >= {"torch", "numpy"}


@pytest.fixture
def short(monkeypatch):
    """A study of two cases, and how to make one of them fail."""
    kept = [case("gin"), case("attention_reweighting")]
    monkeypatch.setattr(theorems, "CASES", kept)

    def fail() -> None:
        outcome = CaseOutcome(error=0.5)
        kept.append(theorems.Case(name="false", source="nowhere", kind="closed form", run=lambda _: outcome))

    return fail


@pytest.fixture
def told(command):
    """Run ``erfscope study``."""
    return partial(command, "study")


@pytest.mark.slow
def test_a_claim_that_failed_is_exit_code_1_and_data_that_are_not_taken_code_2(tmp_path, told, short):
    status, out, err = told("theorems", "--data", str(tmp_path))
    assert (status, out) == (2, "")
    assert "the study theorems makes its own data and takes none" in err
    assert told("theorems")[0] == 0
    short()
    for format_ in ("rich", "json", "csv"):
        status, out, err = told("theorems", "--format", format_)
        assert status == 1
        assert "Failed: false." in (err if format_ == "csv" else out)
        assert format_ != "rich" or "FAILED" in out


@pytest.mark.slow
def test_files_are_written_and_not_over_others(short, tmp_path, told):
    files = [tmp_path / f"theorems{suffix}" for suffix in (".json", ".csv", ".md", ".tex", ".png")]
    assert told("theorems", *(text for file in files for text in ("-o", str(file))))[0] == 0
    assert json.loads(files[0].read_text())["passed"]
    assert "gin" in files[3].read_text()
    assert files[4].stat().st_size > 10_000
    status, out, err = told("theorems", "-o", str(files[0]))
    assert (status, out, "exists already" in err) == (2, "", True)
    assert told("theorems", "-o", str(files[0]), "--force")[0] == 0
    status, _, err = told("theorems", "-o", str(tmp_path / "a.xls"))
    assert status == 2
    assert "an output is a folder (end its name with /), or a file ending in .json, .csv, .md, .tex, .png" in err
    folder = tmp_path / "all"
    assert [told("theorems", "-o", str(folder), *more)[0] for more in ((), (), ("--force",))] == [0, 2, 0]
    assert sorted(path.name for path in folder.iterdir()) == ["figure.png", "study.json", "table.csv", "table.md"]
    (tmp_path / "taken").write_text("")
    _, _, err = told("theorems", "-o", f"{tmp_path / 'taken'}/")
    assert "a file ending in .json, .csv, .md, .tex, .png, .svg, .pdf\n" in err


@pytest.mark.slow
def test_the_list_runs_nothing(told):
    status, out, _ = told("--list")
    assert (status, [word in out for word in ("theorems", "Nicolicioiu", "seconds")]) == (0, [True] * 3)
    assert json.loads(told("--list", "--json")[1])[0]["name"] == "theorems"
    assert "| theorems " in told("--list", "--format", "markdown")[1]


def test_csv_has_one_number_in_a_cell():
    rows = (studies.StudyRow(name="a", sizes=(0.5, 2.0), maps={}), studies.StudyRow(name="b", sizes=None, maps={}))
    result = studies.StudyResult(**EMPTY, rows=rows, claims=())
    assert result.table(format="csv") == "name,sizes_1,sizes_2\na,0.5,2.0\nb,,\n"


@pytest.mark.parametrize(
    ("is_reproduced", "has_mechanism", "verdict"),
    [(True, False, "reproduced"), (False, True, "mechanism only"), (False, False, "not reproduced")],
)
def test_every_claim_has_one_line_with_its_verdict(is_reproduced, has_mechanism, verdict):
    found = claim("larger", "75 ± 17 %", "46.0 ± 0.5 %", is_reproduced, has_mechanism=has_mechanism)
    result = studies.StudyResult(**EMPTY, rows=(), claims=(found,))
    wanted = {"claim": "larger", "published": "75 ± 17 %", "ours": "46.0 ± 0.5 %", "verdict": verdict}
    assert result.to_json()["claims"] == [wanted]
    assert f"| larger | 75 ± 17 % | 46.0 ± 0.5 % | {verdict} |" in result.text(format="markdown").splitlines()
    out = io.StringIO()
    Console(width=100, color_system=None, file=out).print(study_view(result))
    assert f" larger  75 ± 17 %  46.0 ± 0.5 %  {verdict} " in out.getvalue()
    assert result.conclusion.startswith("1 of 1 claims" if is_reproduced else "0 of 1 claims reproduced, 1 ")
    # A training that is too small for a claim is no failure of the study.
    assert result.passed


EMPTY = {"study": "theorems", "seed": 0, "effort": "smoke", "seconds": 0.0, "columns": ()}
EMPTY["picture"] = studies.Picture(title="", rows=())
