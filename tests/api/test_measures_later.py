"""Measures that were not asked for are computed from the result: as if they had been asked for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import MEASURES
from erfscope.core.answer import from_sums
from erfscope.core.answer.measures import SHOWN

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 5, padding=2)).eval()


def analyze(**options: object) -> erfscope.Result:
    return erfscope.analyze(
        net(), **{"input_size": 24, "synthetic": "noise", "samples": 6, "dtype": "float64", **options}
    )


@pytest.mark.parametrize("asked", [{}, {"convention": "signed", "wrt": "0"}, {"samples": 1}, {"shard": "1/2"}])
def test_a_measure_that_was_not_asked_for_is_the_one_that_would_have_been(asked):
    result, every = analyze(**asked), analyze(measures="all", **asked)
    assert tuple(result.measures) == SHOWN
    of_images = [name for name, each in MEASURES.items() if each.axis in ("", "row", "col")]
    assert [*every.measures] == of_images
    for name in of_images:
        assert result[name] == every[name]
    assert result.measures == every.measures


def test_tables_and_differences_compute_what_they_are_asked_for():
    report = erfscope.compare({"a": net(), "b": net()}, input_size=24, synthetic="noise", samples=6, measures="r50")
    assert "luo_size" not in report.table(format="csv")
    assert [*report.differences()[1]] == ["r50"]
    assert "luo_size_diff" in report.table(["luo_size"], format="csv")
    assert [*report.differences(["entropy_area"])[1]] == ["entropy_area"]


def test_a_stored_report_has_those_asked_for_and_gives_others_without_errors(tmp_path):
    result = analyze(measures="r50")
    result.save(tmp_path / "report")
    (read,) = erfscope.read(tmp_path / "report")
    assert [*read.measures] == ["r50"]
    assert read["r90"].value == pytest.approx(result["r90"].value, rel=1e-12)
    assert (read["r90"].se, result["r90"].se is None) == (None, False)
    assert read["entropy_area"].value == pytest.approx(result["entropy_area"].value, rel=1e-12)


def test_large_sums_are_not_kept(monkeypatch):
    monkeypatch.setattr(from_sums, "KEPT", 0)
    result = analyze()
    assert result.sums is None
    assert result["luo_size"].se is None
    assert result["r50"].se is not None


def test_sums_are_no_part_of_what_makes_two_results_equal():
    result = analyze()
    assert dataclasses.replace(result, sums=None, map=None) == dataclasses.replace(result, map=None)
    assert np.isfinite(float(result["sigma_row"]))
