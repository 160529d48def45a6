"""Maps of one comparison are drawn through windows of one side, in figures, on pages and in the terminal."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace

import made_up
import numpy as np
import pytest
from rich.console import Console

from erfscope import ErfMap, ErfscopeError, Report, Result
from erfscope.core import Axes
from erfscope.show import brief, number, plus, with_error
from erfscope.show.drawn import close_up, needed_side
from erfscope.show.figures.draw import CAPTIONS, figure_of, folder_figures, views
from erfscope.show.figures.mosaic import NARROW
from erfscope.show.figures.style import FigureStyle
from erfscope.show.view.terminal.report import draw_report
from erfscope.show.view.windows import window_notes, windows


def box(side: int, label: str = "net", *, space: tuple[int, int] = (128, 128)) -> Result:
    """A map that is uniform over a square of an odd side around the middle: r50 is about 0.4 sides, and the square
    itself is the smallest window that holds all of it."""
    values = np.zeros(space)
    center = tuple((count - 1) // 2 for count in space)
    values[tuple(slice(c - side // 2, c + side // 2 + 1) for c in center)] = 1 / side**2
    erf = ErfMap(values=values, center_px=tuple(map(float, center)), stride_px=(1.0, 1.0))
    sizes = {"r50": (0.4 * side, 0.01), "r90": (0.55 * side, 0.01)}
    return replace(made_up.result(label, sizes=sizes), map=erf)


def test_one_window_holds_the_largest_of_the_maps_and_a_dot_has_a_close_up() -> None:
    for side in (9, 31, 101):
        erf = box(side).map
        # A fifth of its reach stands around the square.
        assert needed_side(erf) == side + 2 * math.ceil((side - 1) / 10)
        assert close_up(erf, side).erf.values.shape == (side, side)
    for sides in ((9, 15), (15, 9), (9, 11, 15)):
        found = windows([box(side, f"net{side}") for side in sides])
        assert {each.part.side for each in found} == {19}
        assert [each.close for each in found] == [None] * len(sides)
        assert window_notes(found) == ["shown: a window of 19 px around the unit"]
    for other, closer in ((21, False), (101, True)):
        small, large = windows([box(9, "small"), box(other, "large")])
        assert (small.close is not None, large.close) == (closer, None)
        assert small.part.side == large.part.side
    assert small.close.side == 11
    # The corner of what it shows, in cells of the map that it lies on.
    assert small.close.inside(small.part) == ((58.0, 69.0), (58.0, 69.0))
    found = windows([box(15, "small", space=(12, 16)), box(101, "large", space=(256, 256))])
    assert [each.close_text for each in found] == ["close-up 16 px", ""]
    assert window_notes(found)[-1] == "close-ups of 16 px where the ERF would be a dot"


def test_inputs_of_different_sizes_have_one_scale_of_lengths_and_its_bar_covers_none() -> None:
    found = windows([box(31, "a", space=(64, 64)), box(61, "b", space=(96, 128))])
    assert [each.part.frame for each in found] == [(96.0, 128.0)] * 2
    assert found[0].part.limits(1) == (-32.5, 95.5)
    figure = figure_of([box(31, "a", space=(64, 64)), box(61, "b", space=(96, 128))], "panel")
    assert [np.ptp(ax.get_xlim()) for ax in figure.axes[:2]] == [128, 128]
    results = [box(9, "small", space=(24, 24)), box(61, "large")]
    figure = figure_of(results, "panel")
    (bar,) = figure.findobj(lambda artist: artist.get_gid() == "scale bar")
    assert bar.axes is figure.axes[1]
    assert [bool(each.bar) for each in views(results, longest=64)] == [False, True]
    assert [bool(each.bar) for each in views(results[:1], longest=64)] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("space", [(8, 256), (256, 8), (256,)])
def test_a_panel_without_a_corner_has_no_close_up_and_the_terminal_has_one_beside_it(space: tuple[int, ...]) -> None:
    found = []
    for side, label in ((5, "small"), (101, "large")):
        values = np.zeros(space)
        values[tuple(slice(max(n // 2 - side // 2, 0), n // 2 + side // 2 + 1) for n in space)] = 1.0
        center = tuple(float(n // 2) for n in space)
        axes = Axes.of_rank(len(space))
        erf = ErfMap(values=values / values.sum(), center_px=center, stride_px=(1.0,) * len(space), axes=axes)
        found.append(replace(made_up.result(label), map=erf, input=replace(made_up.result().input, axes=axes)))
    assert windows(found)[0].close is not None
    assert [each.inset for each in views(found, longest=64)] == [None, None]
    figure = figure_of(found, "panel", conditions=True)
    assert not [child for ax in figure.axes for child in ax.child_axes]
    assert not figure.findobj(lambda artist: "close-up" in getattr(artist, "get_text", str)())


@pytest.mark.slow
def test_a_window_has_as_many_cells_as_it_says_and_the_same_part_of_a_picture() -> None:
    for count in range(2, 301):
        erf = ErfMap(values=np.ones(count) / count, center_px=(0.0,), stride_px=(1.0,), axes=Axes.of_rank(1))
        picture = np.arange(count)
        for cell in range(count):
            assert close_up(replace(erf, center_px=(float(cell),)), 1).of(picture).tolist() == [cell]
    for step in (0.1, 0.7, 1 / 44.1):
        axes = Axes(names=("time",), spacing=(step,), units=("ms",), cell="samples")
        erf = ErfMap(values=np.ones(64) / 64, center_px=(32.0,), stride_px=(1.0,), axes=axes)
        assert [len(close_up(erf, count * step).erf.values) for count in range(1, 64)] == [*range(1, 64)]


def test_zoom_is_all_of_the_input_or_a_side() -> None:
    results = [box(9, "a"), box(15, "b")]
    assert {each.part.side for each in windows(results, "none")} == {None}
    assert [each.part.erf.values.shape for each in windows(results, 40)] == [(40, 40)] * 2
    assert {each.part.side for each in windows(results, "40")} == {40}
    # No window is smaller than the cell that it shows.
    assert {each.part.side_text for each in windows(results, 0.5)} == {"1 px"}
    # All of an input is no window.
    assert {each.part.side for each in windows(results, 500)} == {None}
    for wrong in ("some", "", 0, -3, float("nan"), None, "20px", "20mm"):
        with pytest.raises(ErfscopeError, match="zoom is auto, none or the side"):
            figure_of(results, "panel", zoom=wrong)


def in_terminal(report: Report, **options: object) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(draw_report(report, **options))
    return captured.get()


@pytest.fixture
def captions_alone(monkeypatch) -> None:
    """Do not draw the files that stand beside the captions."""
    monkeypatch.setattr("erfscope.show.figures.draw.figure_bytes", lambda *_: b"")


@pytest.mark.slow
@pytest.mark.usefixtures("captions_alone")
@pytest.mark.parametrize(("zoom", "words"), [("auto", "window 19 px"), (40, "window 40 px"), ("none", "")])
def test_the_figure_the_page_and_the_terminal_show_one_window(zoom, words, tmp_path) -> None:
    report = Report(results=(box(9, "a"), box(15, "b")))
    caption = dict(folder_figures(report.results, zoom=zoom))[CAPTIONS].decode()
    report.save(tmp_path / "page.html", zoom=zoom)
    page = html.unescape((tmp_path / "page.html").read_text())
    found = [text.get_text() for text in report.figure(zoom=zoom).findobj(lambda artist: hasattr(artist, "get_text"))]
    for text in ("\n".join(found), page, in_terminal(report, zoom=zoom)):
        assert ("window" in text) is bool(words)
        assert words in text
    side = words.split()[1] if words else ""
    assert (f"hown: a window of {side} px around the unit" if words else "hown: the whole input") in caption
    assert len(set(re.findall(r'<svg class="map" viewBox="([^"]*)"', page))) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("captions_alone")
def test_close_ups_are_named_with_their_side_wherever_they_stand(tmp_path) -> None:
    report = Report(results=(box(9, "a"), box(101, "b")))
    report.save(tmp_path / "page.html")
    figure = report.figure()
    assert "close-up 11 px" in [text.get_text() for ax in figure.axes for text in ax.texts]
    assert len([ax for ax in figure.axes[0].child_axes if ax.images]) == 1
    caption = dict(folder_figures(report.results))[CAPTIONS].decode()
    for text in ((tmp_path / "page.html").read_text(), in_terminal(report)):
        assert "close-up 11 px" in text
    for text in (caption, in_terminal(report)):
        assert "close-ups of 11 px where the ERF would be a dot" in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "count", "columns"), [("column", 3, 3), ("column", 6, 2), ("text", 4, 4), (None, 5, 3)]
)
def test_no_more_than_a_quarter_of_a_sheet_is_empty(width, count, columns) -> None:
    results = [box(61, f"net{number}") for number in range(count)]

    def across(**style: object) -> int:
        figure = figure_of(results, "panel", width=width, **style)
        return len({round(ax.get_position().x0, 3) for ax in figure.axes[:count]})

    assert across() == columns
    assert across(columns=2) == 2
    # Narrower panels would cut the digits of their sizes.
    assert across(columns=count) == min(count, FigureStyle(width=width).side_by_side(NARROW))
    for wrong in (0, True):
        with pytest.raises(ErfscopeError, match="columns"):
            across(columns=wrong)


def test_zero_has_no_sign_and_errors_that_cannot_be_seen_are_left_out() -> None:
    assert [with_error(-0.00001, 0.00002), with_error(-0.001, 0.02), with_error(12.34, 0.0)] == [
        *("0.0000", "0.00 ± 0.02", "12.3 ± 0")
    ]
    assert [brief(-0.0), number(-0.0), number(-0.0001, places=2)] == ["0", "0", "0.00"]
    assert [plus(text) for text in ("0.00", "0.01", "-0.01", "–", "10")] == ["", "+", "", "", "+"]
