"""What results hold beside their map: measures that were not asked for, as if they had been, and the halo of tiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from nets import Does, conv
from torch import nn

import erfscope
from erfscope import MEASURES
from erfscope.core.answer import from_sums
from erfscope.core.answer.measures import SHOWN
from erfscope.core.answer.result import Halo

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


QUICK = {"measures": "r50", "samples": 1, "draws": 1, "input_size": 32}
#: A stride of 2 reads one cell before its tile and none after; the convolution behind it adds 2 on each side.
STRIDED = Halo(px=((3, 2), (3, 2)), alignment_px=(2, 2))


def gated_net():
    """A map, the same multiplied by its mean, and with its channels last."""

    def forward(m, x):
        y = m.second(m.first(x))
        return m.last(m.gated(y * y.mean((2, 3), keepdim=True)).permute(0, 2, 3, 1))

    return Does(forward, first=conv(s=2), second=conv(4), gated=nn.Identity(), last=nn.LayerNorm(4)).eval()


@pytest.mark.slow
def test_each_layer_has_the_halo_of_its_own_map_or_what_makes_tiles_impossible(tmp_path) -> None:
    report = erfscope.sweep(gated_net(), layer=["first", "second", "gated", "last"], halo=True, **QUICK)
    first, second, gated, last = found = [result.halo for result in report]
    assert first == Halo(px=((1, 0), (1, 0)), alignment_px=(2, 2))
    assert second == STRIDED
    assert (gated.px, gated.alignment_px) == (STRIDED.px, STRIDED.alignment_px)
    assert gated.blockers[0].startswith("global average pooling (the model itself) averages over the whole map")
    assert last.px == ()
    assert last.blockers[0].startswith("layer 'last' holds no map of the image, such as (B, C, H, W),")
    report.save(tmp_path / "report.json")
    assert [result.halo for result in erfscope.read(tmp_path / "report.json")] == found


def test_models_are_compared_with_the_halo_of_each_and_stored_results_keep_theirs() -> None:
    stored = erfscope.analyze(gated_net(), layer="second", **QUICK)
    report = erfscope.compare({"stored": stored, "net": nn.Conv2d(3, 1, 5, padding=2).eval()}, halo=True, **QUICK)
    assert [result.halo for result in report] == [None, Halo(px=((2, 2), (2, 2)), alignment_px=(1, 1))]
