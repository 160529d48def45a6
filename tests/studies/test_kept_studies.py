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
from erfscope.core import ErfscopeError
from erfscope.show.view.fit import fit


@pytest.mark.slow
def test_a_study_is_read_from_json_as_it_was(tmp_path, monkeypatch):
    skip = studies.run("luo-skip", effort="smoke")
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
    with pytest.raises(ErfscopeError, match="keeps no run of a study 'padding'; run it"):
        kept_study("padding")


@pytest.mark.parametrize("name", STUDIES)
def test_the_package_ships_a_real_run_of_every_study(name):
    found, result = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")), kept_study(name)
    assert found["settings"]["effort"] in ("quick", "full", "long")
    assert found["settings"]["data"] is None
    assert found["seconds"] > 1
    assert set(found["environment"]["versions"]) >= {"erfscope", "torch", "numpy"}
    assert found["passed"]
    assert result.document() == found
    # Optional columns are the first to go in a narrow terminal.
    optional = {column.title for column in result.columns if column.optional}
    for width in range(40, 161, 10):
        hidden = set(fit(result.rows_table(result.columns, has_headings=True), width).hidden)
        assert hidden <= optional or hidden >= optional


@pytest.mark.parametrize("name", STUDIES)
def test_a_line_above_the_table_says_why_not_every_claim_is_reproduced(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")
    first = command("study", name, "--show")[1].splitlines()[0]
    verdicts = {each.verdict for each in kept_study(name).claims}
    said = f"Not every claim below is reproduced: {STUDIES[name].reason}"
    assert first.startswith(said) is (verdicts != {"reproduced"})
    weaker = first.endswith("; mechanism only: the effect is there, but smaller or in smaller nets.")
    assert weaker is ("mechanism only" in verdicts)
    assert STUDIES[name].reason or verdicts == {"reproduced"}


def test_a_kept_run_is_printed_drawn_and_listed_and_nothing_is_run(monkeypatch, tmp_path, command):
    monkeypatch.setattr(studies, "run", None)
    code, out, _ = command("study", "sort-of-clevr", "--show", "-o", str(tmp_path / "figure.png"))
    assert code == 0
    shown = kept_study("sort-of-clevr")
    assert all(word in out for each in shown.claims for word in (*each.claim.split(), *each.ours.split(), each.verdict))
    assert f"torch {shown.environment['versions']['torch']}" in out
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    code, _, told = command("study", "padding", "--show", "--seed", "3")
    assert code == 2
    assert "prints the kept run of padding (full, seed 0)" in " ".join(told.split())
    for entry in json.loads(command("study", "--list", "--json")[1]):
        verdicts = [each.verdict for each in kept_study(entry["name"]).claims]
        assert entry["kept_run"] == f"{verdicts.count('reproduced')} of {len(verdicts)} reproduced"


#: Studies whose claims follow from their rows alone.
OF_ROWS = (
    *("theorems", "luo-gaussian", "luo-growth", "luo-subsample-dilation", "luo-skip", "luo-dropout"),
    *("luo-nonlinearity", "luo-init", "correlations", "padding", "gatv2-gradients", "trust", "trained"),
)


@pytest.mark.parametrize("name", OF_ROWS)
def test_kept_verdicts_are_those_of_the_present_limits(name):
    shown = kept_study(name)
    module = importlib.import_module(f"erfscope.apps.lab.studies.{STUDIES[name].home}")
    assert module._claims(shown.rows) == list(shown.claims)
