"""``--unit px:r,c``: the unit nearest to a pixel, so that two models are compared at one place."""

from __future__ import annotations

import csv

import pytest
from torch import nn

import erfscope
from erfscope import ErfscopeError


def net(strides: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(strides))).eval()


def indices(unit: object, **options) -> list[tuple[int, ...]]:
    asked = {"input_size": (32, 32), "samples": 1, "measures": "r50", **options}
    return [result.unit.index for result in erfscope.sweep(net(2), unit=unit, **asked)]


def test_the_nearest_unit_is_taken_along_each_axis():
    """Unit u stands at pixel 4 u."""
    assert indices("px:5,9") == [(1, 2)]
    assert indices("px:0,31, px:5.5,16, centre") == [(0, 7), (1, 4), (4, 4)]
    assert indices(["px:5,9", (0, 0)]) == [(1, 2), (0, 0)]


def test_two_models_are_compared_at_one_place():
    report = erfscope.compare(
        {"coarse": net(3), "fine": net(2)}, unit="px:16,8", input_size=(32, 32), samples=1, measures="r50"
    )
    assert [result.unit.center_px for result in report] == [(16, 8), (16, 8)]


def test_how_far_units_stand_from_the_pixel_is_said_where_they_stand_elsewhere():
    asked = {"input_size": (32, 32), "samples": 1, "measures": "r50"}
    nets = {"coarse": net(3), "fine": net(2)}
    shown = " ".join(str(erfscope.compare(nets, unit="px:16,5", **asked)).split())
    places = "coarse output at 16,8 (3 px away), fine output at 16,4 (1 px away)"
    assert f"units nearest to pixel 16,5 stand elsewhere: {places}" in shown
    report = erfscope.compare(nets, unit="px:16,5", **asked)
    for name in ("markdown", "latex"):
        assert f"Units nearest to pixel 16,5 stand elsewhere: {places}." in report.table(format=name)
    rows = [dict(row) for row in csv.DictReader(report.table(format="csv").splitlines())]
    assert [row["center_px"] for row in rows] == ["16,8", "16,4"]
    stored = report.to_json()
    assert stored["settings"]["unit"] == "px:16,5"
    assert [row["unit"]["center_px"] for row in stored["results"]] == [[16, 8], [16, 4]]
    assert "stand elsewhere" not in str(erfscope.compare(nets, unit="px:16,8", **asked))
    assert "stand elsewhere" not in str(erfscope.compare(nets, unit="centre", **asked))
    single = " ".join(str(erfscope.sweep(net(2), unit="px:5,9", **asked)).split())
    assert "output at 4,8 (1.41 px away)" in single


def test_a_receptive_field_is_asked_for_by_pixel_too():
    assert erfscope.theoretical(net(2), unit="px:5,9", input_size=(32, 32)).center_px == (4, 8)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("px:32,2", "there is no place 32,2 in an input of 32x32; write a number from 0 for each of its axes"),
        ("px:3", "there is no place 3 in an input of 32x32"),
        ("px:a,b", "cannot read the unit 'px:a,b'; write centre, corner, edge, grid:N, px:r,c or 2 indices"),
    ],
)
def test_what_is_no_pixel_is_refused(unit, words):
    with pytest.raises(ErfscopeError, match=words):
        indices(unit)
