"""Runs that the package ships are shown without running, and the page of studies has their numbers."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

from erfscope import studies
from erfscope.apps.lab.studies import STUDIES, kept_study
from erfscope.apps.lab.studies import study as kept
from erfscope.apps.lab.studies.study import FOLDER
from erfscope.cli.main import main
from erfscope.core import ErfscopeError
from erfscope.show.view.fit import fit


@pytest.fixture(scope="module")
def skip() -> studies.StudyResult:
    return studies.run("luo-skip", effort="smoke")


@pytest.mark.slow
def test_a_study_is_read_from_json_as_it_was(skip, tmp_path, monkeypatch):
    skip.save(tmp_path / "luo-skip.json")
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    read = kept_study("luo-skip")
    assert (read.effort, read.seed, read.seconds, read.passed) == ("smoke", 0, round(skip.seconds, 3), True)
    for format_ in ("plain", "csv", "markdown", "latex"):
        assert read.text(format=format_) == skip.text(format=format_)
    assert read.document() == skip.document()
    for row, wanted in zip(read.picture.rows, skip.picture.rows, strict=True):
        for panel, same in zip(row, wanted, strict=True):
            if isinstance(panel, studies.ChartMap):
                # Seven bits are kept, down to a millionth of the largest value.
                np.testing.assert_allclose(panel.values, same.values, rtol=2**-6, atol=2e-6 * same.values.max())
            else:
                assert [list(curve.y) for curve in panel.curves] == [list(curve.y) for curve in same.curves]


@pytest.mark.parametrize("name", STUDIES)
def test_the_package_ships_a_real_run_of_every_study(name):
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert found["settings"]["effort"] in ("quick", "full", "long")
    assert found["settings"]["data"] is None
    assert found["seconds"] > 1
    assert set(found["environment"]["versions"]) >= {"erfscope", "torch", "numpy"}
    assert found["passed"]
    assert kept_study(name).document() == found


@pytest.mark.parametrize("name", STUDIES)
def test_a_line_above_the_table_says_why_not_every_claim_is_reproduced(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")
    with pytest.raises(SystemExit):
        main(["study", name, "--show"])
    first = capsys.readouterr().out.splitlines()[0]
    is_all = all(each.verdict == "reproduced" for each in kept_study(name).claims)
    said = f"Not every claim below is reproduced: {STUDIES[name].reason}"
    assert first.startswith(said) is not is_all
    weaker = any(each.verdict == "mechanism only" for each in kept_study(name).claims)
    assert first.endswith("; mechanism only: the effect is there, but smaller or in smaller nets.") is weaker
    assert STUDIES[name].reason or is_all


def test_a_kept_run_is_printed_and_drawn_and_nothing_is_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(studies, "run", None)
    with pytest.raises(SystemExit) as stopped:
        main(["study", "sort-of-clevr", "--show", "-o", str(tmp_path / "figure.png")])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    shown = kept_study("sort-of-clevr")
    assert all(word in out for each in shown.claims for word in (*each.claim.split(), *each.ours.split(), each.verdict))
    assert f"torch {shown.environment['versions']['torch']}" in out
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_a_kept_run_is_not_shown_for_options_that_it_was_not_made_with(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["study", "padding", "--show", "--seed", "3"])
    assert stopped.value.code == 2
    assert "prints the kept run of padding (full, seed 0)" in " ".join(capsys.readouterr().err.split())


def test_the_list_says_how_many_claims_each_kept_run_reproduces(capsys):
    with pytest.raises(SystemExit):
        main(["study", "--list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    for entry in listed:
        verdicts = [each.verdict for each in kept_study(entry["name"]).claims]
        assert entry["kept_run"] == f"{verdicts.count('reproduced')} of {len(verdicts)} reproduced"


def test_an_unknown_effort_is_refused():
    with pytest.raises(ErfscopeError, match="medium"):
        studies.run("luo-growth", effort="medium")


def test_a_study_of_which_no_run_is_kept_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    with pytest.raises(ErfscopeError, match="keeps no run of a study 'padding'; run it"):
        kept_study("padding")


#: Studies whose claims follow from their rows alone.
OF_ROWS = (
    *("theorems", "luo-gaussian", "luo-growth", "luo-subsample-dilation", "luo-skip", "luo-dropout"),
    *("luo-nonlinearity", "luo-init", "correlations", "padding", "gatv2-gradients", "trust"),
)


@pytest.mark.parametrize("name", OF_ROWS)
def test_kept_verdicts_are_those_of_the_present_limits(name):
    shown = kept_study(name)
    module = importlib.import_module(f"erfscope.apps.lab.studies.{STUDIES[name].home}")
    assert module._claims(shown.rows) == list(shown.claims)


@pytest.mark.parametrize("name", STUDIES)
def test_optional_columns_are_the_first_to_go_in_a_narrow_terminal(name):
    result = kept_study(name)
    optional = {column.title for column in result.columns if column.optional}
    for width in range(40, 161, 10):
        hidden = set(fit(result.rows_table(result.columns, has_headings=True), width).hidden)
        assert hidden <= optional or hidden >= optional
