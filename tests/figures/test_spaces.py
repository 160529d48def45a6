"""The panels of volumes, clips and sequences hold slices, frames and curves of the map, and marks in its units."""

from __future__ import annotations

from dataclasses import replace

import made_up
import numpy as np
import pytest
from matplotlib.patches import Ellipse
from matplotlib.text import Text

from erfscope import ErfMap, ErfscopeError, Result
from erfscope.core import Axes, MeasureValue
from erfscope.core.answer.positions import Positions
from erfscope.core.answer.result import InputRecord, UnitRecord
from erfscope.core.values.axes import NAMES
from erfscope.show.figures.draw import figure_of, views
from erfscope.show.figures.spaces import frames_around
from erfscope.show.figures.volumes import slice_of

#: In the unit of the axes.
RADII = {"r50": 3.0, "r90": 5.0}


def made(shape: tuple[int, ...], axes: Axes) -> Result:
    values = np.random.default_rng(0).random(shape)
    index, strides = tuple(side // 2 for side in shape), (1.0,) * len(shape)
    center = tuple(map(float, index))
    return replace(
        made_up.result("net"),
        input=InputRecord(size=shape, source="leaves", n_images=1, n_draws=1, sha256="ab", axes=axes),
        unit=UnitRecord(index=index, center_px=center, center_exact=True, stride_px=strides),
        trf=None,
        measures={name: MeasureValue(value=value, se=None, kind="radius") for name, value in RADII.items()},
        map=ErfMap(values=values / values.sum(), center_px=center, stride_px=strides, axes=axes),
    )


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(Text))


def by_gid(home, name):
    return [each for each in home.findobj() if each.get_gid() == name]


@pytest.mark.slow
def test_volumes_are_three_slices_through_the_unit_with_rings_by_the_spacing():
    axes = Axes(names=NAMES["dhw"], spacing=(2.5, 1.0, 0.5), units=("mm",) * 3, cell="voxels")
    result = made((6, 8, 10), axes)
    values, (*panels, bar) = result.map.values, figure_of([result], "panel").axes
    expected = [values[3] * 6, values[:, 4] * 8, values[:, :, 5] * 10]
    assert (len(panels), bar.get_ylabel()) == (3, "share of the ERF")
    for ax, plane, kept in zip(panels, expected, [(1, 2), (0, 2), (0, 1)], strict=True):
        assert np.array_equal(slice_of(result.map, kept).values, plane)
        assert ax.images[0].get_array().shape == plane.shape
        names = [f"{axes.names[axis]} (mm)" for axis in kept]
        assert [ax.get_ylabel(), ax.get_xlabel()] == names
        assert ax.get_aspect() == axes.spacing[kept[0]] / axes.spacing[kept[1]]
        rings = {each.get_gid(): each for each in ax.patches if isinstance(each, Ellipse)}
        for name, radius in RADII.items():
            found = (rings[name].height / 2, rings[name].width / 2)
            assert found == pytest.approx([radius / axes.spacing[axis] for axis in kept])
            assert rings[name].center == (result.map.center_px[kept[1]], result.map.center_px[kept[0]])
    axes = Axes(names=NAMES["dhw"], spacing=(2.5, 1.0, 1.0), units=("mm",) * 3, cell="voxels")
    results = [replace(made((6, 8, 10), axes), id=name, label=name) for name in "ab"]
    *panels, bar = figure_of(results, "panel", contours=(50,)).axes
    assert bar.get_ylabel() == "share of the ERF"
    assert [ax.get_xlabel() for ax in panels] == ["col (mm)", "col (mm)", "row (mm)"] * 2
    assert len({ax.images[0].get_clim() for ax in panels}) == 1
    assert all(by_gid(ax, "contours") for ax in panels)


@pytest.mark.slow
def test_clip_is_seven_frames_on_one_scale_and_their_sum_and_its_inner_units_are_outlined():
    axes = Axes(names=NAMES["thw"], spacing=(40.0, 1.0, 1.0), units=("ms", "px", "px"))
    result = made((9, 12, 12), axes)
    *frames, whole, _ = figure_of([result], "panel").axes
    values = result.map.values
    assert len({ax.images[0].get_clim() for ax in frames}) == 1
    for ax, frame in zip(frames, range(1, 8), strict=True):
        assert np.array_equal(ax.images[0].get_array(), values[frame])
        assert ax.get_title() == f"{100 * values[frame].sum():.0f} %\n{frame}\n{40 * frame} ms"
        assert [line.get_gid() for line in ax.lines] == ["unit frame"] * (frame == 4)
    assert whole.images[0].get_array().shape == (12, 12)
    assert frames_around(0, 9) == range(7)
    assert frames_around(8, 9) == range(2, 9)
    assert frames_around(1, 3) == range(3)
    inside = np.zeros((3, 6, 6), dtype=bool)
    inside[1, 1:5, 2:4] = True
    sizes = np.ones(inside.shape)
    found = Positions(r50=sizes, context_r50=sizes, inside=inside, passes=1)
    result = replace(made((3, 6, 6), Axes.named(NAMES["thw"])), positions=found)
    (line, _) = by_gid(figure := figure_of([result], "positions"), "inside")
    assert [*line.get_xdata()][:2] == [1.5, 3.5]
    assert [min(line.get_ydata()), max(line.get_ydata())] == [0.5, 4.5]
    assert "median over time" in texts(figure)


def test_sequence_is_a_curve_in_the_units_of_its_axis():
    axes = Axes(names=NAMES["t"], spacing=(2.0,), units=("ms",), cell="samples")
    result = made((50,), axes)
    (ax,) = figure_of([result], "panel").axes
    (curve,) = [line for line in ax.lines if line.get_gid() == "curve"]
    assert not ax.images
    assert np.sum(curve.get_ydata()) == pytest.approx(1)
    assert np.array_equal(curve.get_xdata(), 2.0 * np.arange(50))
    assert [ax.get_xlabel(), ax.get_ylabel()] == ["time (ms)", "share per sample"]
    spans = {each.get_gid(): each.get_extents().transformed(ax.transData.inverted()) for each in ax.patches}
    for name, radius in RADII.items():
        assert [spans[name].x0, spans[name].x1] == pytest.approx([50 - radius, 50 + radius])


def test_rings_scale_bars_and_cells_of_an_image_follow_the_spacing():
    axes = Axes(names=NAMES["hw"], spacing=(2.0, 0.25), units=("mm", "mm"))
    result = made((20, 48), axes)
    figure = figure_of([result], "panel")
    rings = {each.get_gid(): each for each in figure.axes[0].patches if isinstance(each, Ellipse)}
    assert {name: (ring.height, ring.width) for name, ring in rings.items()} == {"r50": (3, 24), "r90": (5, 40)}
    (bar,) = by_gid(figure, "scale bar")
    # Three tenths of 12 mm are 3.6 mm.
    assert np.ptp(bar.get_xdata()) * 0.25 == pytest.approx(2)
    assert "2 mm" in texts(figure)
    assert figure.axes[0].get_aspect() == 8
    (drawn,) = views([result], longest=100)
    assert (drawn.width, drawn.height, drawn.bar_text) == (48, 160, "2 mm")
    # Row 10 begins 20 mm, which are 80 widths of a cell, from the edge at -0.5; its centre is 4 further.
    assert drawn.unit == (83.5, 24)
    assert [ring.radius for ring in drawn.rings] == [12, 20]


@pytest.mark.slow
def test_a_volume_lies_over_the_slices_of_what_was_shown_and_a_sequence_over_nothing():
    shown = np.arange(6 * 8 * 10, dtype=np.uint8).reshape(6, 8, 10, 1)
    volume = replace(made((6, 8, 10), Axes.named(NAMES["dhw"])), picture=shown)
    under = [ax.images[0].get_array() for ax in figure_of([volume], "overlay").axes[:3]]
    for found, expected in zip(under, (shown[3], shown[:, 4], shown[:, :, 5]), strict=True):
        assert np.array_equal(found, expected[..., 0] / 255)
    sound = replace(made((50,), Axes.named(NAMES["t"])), picture=np.zeros((50, 1), np.uint8))
    with pytest.raises(ErfscopeError, match="of sequences the panel shows curves"):
        figure_of([sound], "overlay")


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "name"), [((50, 50), "time (ms)"), ((50, 70), "time from the unit (ms)")])
def test_several_sequences_are_curves_over_one_axis(lengths, name):
    axes = Axes(names=NAMES["t"], spacing=(2.0,), units=("ms",), cell="samples")
    results = [replace(made((length,), axes), id=str(length), label=str(length)) for length in lengths]
    above, below = (figure := figure_of(results, "panel")).axes
    assert below.get_xlabel() == name
    unit = 50.0 if len(set(lengths)) == 1 else 0.0
    for result, curve in zip(results, by_gid(above, "curve"), strict=True):
        assert np.array_equal(curve.get_ydata(), result.map.values)
        middle = int(result.map.center_px[0])
        assert curve.get_xdata()[middle] == unit
    for size, radius in RADII.items():
        assert [list(line.get_xdata()) for line in by_gid(below, size)] == [[unit - radius, unit + radius]] * 2
    assert "r50 3.00 ms" in texts(figure)
    # 32 samples of a window of 64 ms, up to their borders, around the one at 50 ms.
    assert figure_of(results[:1], "panel", zoom=64).axes[0].get_xlim() == (19.0, 83.0)
