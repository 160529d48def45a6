"""Figures of studies: every axis with a logarithmic scale has numbers, and rows stand under their headings."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text

from erfscope.show import Chart, ChartMap, Curve, Picture
from erfscope.show.plot import draw


def ticks(low: float, high: float, axis: str) -> list[str]:
    """What is written at the ticks within the axis of a chart from ``low`` to ``high``."""
    ends = {"x": [low, high], "y": [low, high]}
    curve = Curve(label="any", **ends)
    figure = draw(Picture(title="", rows=((Chart(title="any", x="x", y="y", curves=(curve,), log=axis),),)))
    figure.canvas.draw()
    shown = getattr(figure.axes[0], f"{axis}axis")
    first, last = sorted(shown.get_view_interval())
    labels = zip(shown.get_majorticklocs(), shown.get_majorticklabels(), strict=True)
    return [label.get_text() for place, label in labels if first <= place <= last]


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_logarithmic_axis_has_at_least_three_numbers_whatever_its_range(axis):
    for low, high, wanted in ((1e-16, 1.0, "1"), (1e-3, 1e3, "1000"), (5.0, 40.0, "20"), (3.1, 3.4, "3.2")):
        written = ticks(low, high, axis)
        assert 3 <= len(written) <= 11
        assert wanted in written
        assert all(written)


def test_rows_stand_under_headings_points_side_by_side_and_ticks_at_whole_numbers():
    panel = ChartMap(title="any", values=np.eye(3))
    figure = draw(Picture(title="of all", rows=((panel,), (panel, panel)), headings=("one", "two")))
    figure.draw_without_rendering()
    heights = {text.get_text(): text.get_window_extent().y0 for text in figure.findobj(Text)}
    tops = [ax.get_window_extent().y1 for ax in figure.axes]
    assert heights["of all"] > heights["one"] > tops[0] > heights["two"] > tops[1]
    assert tops[1] == pytest.approx(tops[2], rel=1e-12)
    curves = tuple(Curve(label=label, x=[0, 1], y=[1, 1], points=True) for label in "abc")
    named = Chart(title="", x="", y="", curves=curves, names=("p", "q"))
    epochs = Chart(title="", x="epoch", y="", curves=(Curve(label="a", x=range(3), y=[1, 2, 3]),))
    figure = draw(Picture(title="", rows=((named, epochs),)))
    left, right = figure.axes
    places = [line.get_xdata()[0] for line in left.lines]
    assert len(set(places)) == 3
    assert np.mean(places) == pytest.approx(0)
    assert all(float(tick).is_integer() for tick in right.get_xticks())


@pytest.mark.slow
def test_a_sideways_chart_has_a_line_for_every_name_from_top_to_bottom():
    names = tuple(f"claim {number}" for number in range(40))
    curve = Curve(label="any", x=[10.0**-number for number in range(40)], y=range(40), points=True)
    looks = {"marks": (("limit", 1e-3),), "log": "x", "sideways": True}
    chart = Chart(title="", x="error", y="", curves=(curve,), names=names, **looks)
    figure = draw(Picture(title="", rows=((chart,),)))
    (ax,) = figure.axes
    figure.canvas.draw()
    assert [label.get_text() for label in ax.get_yticklabels()] == list(names)
    heights = [ax.transData.transform((1, place))[1] for place in range(40)]
    assert heights == sorted(heights, reverse=True)
    # Names of 7 points need 7/72 of an inch.
    assert (heights[0] - heights[1]) / figure.dpi > 7 / 72
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert min(box.x0 for box in boxes) >= 0
    assert list(ax.lines[-1].get_xdata()) == [1e-3, 1e-3]
