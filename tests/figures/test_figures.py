"""Figures draw the numbers of the results, say what they show, and stay readable: every kind, at any count, whatever a
model is called."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import made_up
import matplotlib
import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.patches import Circle, Rectangle
from matplotlib.text import Text
from PIL import Image

import erfscope
from erfscope import ErfMap, ErfscopeError, MeasurementError, Report, Result, Trf
from erfscope.core import MeasureValue
from erfscope.core.answer.measures import measure_map, with_errors
from erfscope.core.answer.measures.radial_curve import radial_profile
from erfscope.core.answer.positions import Positions
from erfscope.core.answer.result import InputRecord, UnitRecord
from erfscope.core.answer.storage.files import map_bytes
from erfscope.core.values.model_facts import Weights
from erfscope.show.figures import draw, maps
from erfscope.show.figures.asked import check_figure
from erfscope.show.figures.canvas import drawing, figure_bytes
from erfscope.show.figures.draw import default_kind, fitting, folder_figures
from erfscope.show.figures.kinds import FIGURES, KINDS
from erfscope.show.figures.maps import MAGNITUDE, SIGNED, common_peak, display, shared
from erfscope.show.figures.panels import panel_with_expected
from erfscope.show.figures.style import COLOURS, SCALES
from erfscope.show.view.table import escaped
from erfscope.show.view.windows import windows

#: Rounding of a coordinate to a pixel.
PIXEL = 1.5

#: With conditions and the meaning of colours under the panels.
figure_of = partial(draw.figure_of, conditions=True)
panel = partial(figure_of, kind="panel")


def gaussian(size=(64, 64), center=(31.0, 31.0), sigma=8.0) -> np.ndarray:
    rows, cols = (np.exp(-((np.arange(n) - c) ** 2) / (2 * sigma**2)) for n, c in zip(size, center, strict=True))
    return np.outer(rows, cols) / (rows.sum() * cols.sum())


def field(size, center, space) -> Trf:
    box = [(int(c) - size // 2, int(c) + size // 2) for c in center]
    return made_up.box_field(box, space, stride=8, center_px=center)


def made(label="net", values=None, *, center=None, trf=41, noisy=True, **changes) -> Result:
    """A result with a map whose measures have errors, from four leave-one-out maps."""
    values = gaussian() if values is None else values
    center = tuple((n - 1) // 2 * 1.0 for n in values.shape) if center is None else center
    scale, strides = changes.get("scale", "amplitude"), (8.0,) * values.ndim
    box = None if trf is None else field(trf, center, values.shape)
    erf = ErfMap(values=values, center_px=center, stride_px=strides, scale=scale, trf=box)
    rng = np.random.default_rng(0)
    others = [values * (1 + 0.2 * rng.random(values.shape)) for _ in range(4)] if noisy else []
    index = tuple(int(c // 8) for c in center)
    told = {
        "weights": Weights(source="random", seed=0),
        "input": InputRecord(size=values.shape[-2:], source="leaves", n_images=4, n_draws=1, sha256="ab"),
        "layer": "layer",
        "unit": UnitRecord(index=index, center_px=center, center_exact=True, stride_px=strides),
        "scale": scale,
        "trf": box,
        "measures": with_errors(erf, others, ["r50", "r90"]),
        "map": erf,
        "cost": None,
    }
    return replace(made_up.result(label), **{"id": f"{label}-layer-u0", **told, **changes})


def sized(r50: float, **changes) -> Result:
    """A result without a map: only r50, and r90 = 2 r50, with errors of a tenth."""
    found = {"r50": float(r50), "r90": 2.0 * r50}
    sizes = {name: MeasureValue(value=value, se=value / 10, kind="radius") for name, value in found.items()}
    return replace(made(), map=None, measures=sizes, **changes)


def everywhere(space=(8, 8)) -> Positions:
    """Sizes that shrink towards the border of the map of a layer, with a unit that has none."""
    towards = np.minimum.reduce(
        [np.minimum(index, side - 1 - index) for index, side in zip(np.indices(space), space, strict=True)]
    )
    sizes = 8.0 + towards
    sizes[(0,) * len(space)] = np.nan
    return Positions(r50=sizes, context_r50=2 * sizes, inside=towards > 1, passes=4)


@cache
def reports() -> dict[str, list[Result]]:
    """Results that each kind fits."""
    two = [made("one"), made("two", gaussian(sigma=4.0))]
    fields = [(4, "a", 9), (9, "b", 25), (17, "c", 61)]
    host = sized(10.0, id="host", label="net")
    alphas = [sized(10 + a, label=f"net + gcn, alpha {a:g}", alpha=a, insert="gcn@b", host="host") for a in (1.0, 0.25)]
    stages = [("b", 41, 8.0), ("a", 9, 2.0)]
    steps = [(2, 8.0), (10, 12.0), (100, 20.0)]
    places = [(16.0, 16.0), (16.0, 48.0), (48.0, 16.0)]
    return {
        "panel": two,
        "overlay": [made(picture=np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3))],
        "strip": [made(layer=name, trf=size, values=gaussian(sigma=sigma)) for name, size, sigma in stages],
        "profile": [*two, made("three", gaussian(sigma=12.0))],
        "depth": [sized(r, layer=name, trf=field(s, (31.0, 31.0), (64, 64))) for r, name, s in fields],
        "alpha": [host, *alphas],
        "sizes": [sized(r, input=replace(made().input, size=(s, s))) for r, s in ((30.0, 96), (40.0, 160))],
        "training": [sized(r, id=f"at-{n}", label=f"net @ {n}", step=n) for n, r in steps],
        "positions": [made(positions=everywhere())],
        "units": [made(values=gaussian(center=at), center=at) for at in places],
    }


@pytest.fixture(autouse=True)
def coarse(monkeypatch) -> None:
    """A third of the dots: what takes time is to draw them."""
    monkeypatch.setattr("erfscope.show.figures.canvas.DPI", 70)


def by_gid(axes, gid):
    return [artist for artist in axes.findobj(lambda a: a.get_gid() == gid) if artist.get_visible()]


def texts(figure) -> list[Text]:
    """Letters that are seen: ticks beyond the end of an axis are not drawn."""
    unseen = set()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high or not axis.axes.axison:
                unseen |= {tick.label1, tick.label2}
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in unseen]


def words(figure) -> str:
    return "\n".join(t.get_text() for t in texts(figure))


@pytest.mark.parametrize("center", [(20.0, 31.0), (20.5, 31.5), (20.3, 31.9), (0.0, 0.0), (-4.0, 10.0)])
def test_the_profile_is_the_rule_of_the_radii_at_every_radius(center):
    values = np.random.default_rng(0).random((48, 70)) ** 4
    erf = ErfMap(values=values / values.sum(), center_px=center, stride_px=(8.0, 8.0))
    found = radial_profile(erf)
    distance = np.hypot(*np.meshgrid(np.arange(48) - center[0], np.arange(70) - center[1], indexing="ij"))
    brute = [np.sum(erf.values * np.clip(r - distance + 0.5, 0, 1)) for r in found.radius_px]
    np.testing.assert_allclose(found.enclosed, brute, rtol=0, atol=1e-12)
    rings = [np.abs(distance - r) <= 0.5 + 1e-9 for r in found.radius_px]
    np.testing.assert_allclose(found.density, [erf.values[ring].mean() * values.size for ring in rings], rtol=1e-9)
    for name, share in (("r50", 0.5), ("r90", 0.9)):
        at = found.radius_px == measure_map(erf, [name])[name]
        assert found.enclosed[at] == pytest.approx(share, abs=1e-9)
    assert found.enclosed[-1] == pytest.approx(1, abs=1e-12)


def test_the_fit_of_a_gaussian_is_its_own_profile_and_noise_has_none():
    erf = ErfMap(values=gaussian(sigma=6.0), center_px=(31.0, 31.0), stride_px=(8.0, 8.0))
    found = radial_profile(erf, with_fit=True)
    near = found.radius_px < 20
    np.testing.assert_allclose(found.fit[near], found.density[near], rtol=1e-4)
    noise = np.random.default_rng(0).random((64, 64))
    flat = ErfMap(values=noise / noise.sum(), center_px=(31.0, 31.0), stride_px=(8.0, 8.0))
    assert measure_map(flat, ["gaussian_sigma_row"])["gaussian_sigma_row"] is None
    assert radial_profile(flat, with_fit=True).fit is None


@pytest.mark.parametrize("name", [MAGNITUDE, SIGNED])
def test_colours_rise_in_lightness_from_end_to_end(name):
    rgb = colormaps[name](np.arange(256))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) > -2e-4).all()
    assert luminance[-1] - luminance[0] > 0.5


def picture_of(values, longest, *, peak=1.0, signed=False) -> Image.Image:
    return Image.open(io.BytesIO(maps.coloured_png(maps.drawn_cells(values, longest), peak=peak, signed=signed)))


def test_small_pictures_are_averaged_down_and_never_enlarged_and_signed_ones_have_zero_in_the_middle():
    values = np.zeros((60, 90))
    values[:30] = 1.0
    small = picture_of(values, 30)
    assert (small.mode, small.size) == ("P", (30, 20))
    levels = np.asarray(small)
    assert (levels[:10] == 255).all()
    assert (levels[10:] == 0).all()
    checks = np.indices((60, 60)).sum(axis=0) % 2 * 1.0
    assert np.unique(np.asarray(picture_of(checks, 30))).tolist() == [128]
    assert picture_of(values, 500).size == (90, 60)
    colours = np.asarray(small.convert("RGB"))
    np.testing.assert_array_equal(colours[0, 0], colormaps[MAGNITUDE](255, bytes=True)[:3])
    signed = np.asarray(picture_of(np.array([[-9.0, -2.0, 0.0, 2.0, 9.0]]), 500, peak=2.0, signed=True))
    assert signed.ravel().tolist() == [0, 0, 128, 255, 255]


def test_scales_are_what_they_say_large_maps_are_averaged_and_the_peak_is_never_zero():
    erf = ErfMap(values=np.array([[-0.3, 0.2], [0.1, 0.4]]), center_px=(0.0, 0.0), stride_px=(1.0, 1.0), scale="signed")
    density = erf.values * 4
    np.testing.assert_allclose(display(erf, "linear"), density)
    np.testing.assert_allclose(display(erf, "log"), np.sign(density) * np.log10(1 + np.abs(density)))
    np.testing.assert_allclose(display(erf, "power"), np.sign(density) * np.abs(density) ** 0.3)
    values = np.random.default_rng(1).random((64, 128))
    erf = ErfMap(values=values, center_px=(31.0, 63.0), stride_px=(1.0, 1.0))
    means = values.reshape(16, 4, 32, 4).mean((1, 3))
    small = ErfMap(values=16 * means, center_px=(7.0, 15.0), stride_px=(1.0, 1.0))
    np.testing.assert_allclose(display(erf, "linear", longest=32), display(small, "linear"))
    np.testing.assert_allclose(display(erf, "share", longest=32), display(small, "share"), atol=1e-12)
    one = np.zeros((40, 40))
    assert common_peak([one]) == 1.0
    one[3, 3] = 7.0
    assert common_peak([one]) == 7.0
    assert common_peak([one, np.full((4, 4), 2.0), np.full((4, 4), -3.0)]) == 3.0
    assert common_peak([np.full((2, 2), np.nan)]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_a_panel_shows_the_values_and_the_measures_of_each_result(scale):
    results = [made("wide", gaussian(sigma=12.0)), made("narrow", gaussian(sigma=4.0))]
    figure = panel(results, scale=scale)
    *panels, bar = figure.axes
    assert len(panels) == 2
    peaks = set()
    for ax, result in zip(panels, results, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), display(result.map, scale))
        peaks.add(ax.images[0].norm.vmax)
        rings = {patch.get_gid(): patch for patch in ax.patches if isinstance(patch, Circle)}
        assert {name: ring.radius for name, ring in rings.items()} == {
            name: result[name].value for name in ("r50", "r90")
        }
        assert all(ring.center == (31.0, 31.0) for ring in rings.values())
        box = next(patch for patch in ax.patches if isinstance(patch, Rectangle))
        assert (box.get_xy(), box.get_width(), box.get_height()) == ((10.5, 10.5), 41, 41)
        (unit,) = by_gid(ax, "unit")
        assert (unit.get_xdata()[0], unit.get_ydata()[0]) == (31.0, 31.0)
        (length,) = (np.ptp(line.get_xdata()) for line in by_gid(ax, "scale bar"))
        assert f"{length:g} px" in [text.get_text() for text in ax.texts]
    assert len(peaks) == 1
    assert bar.get_ylim()[1] == pytest.approx(peaks.pop())
    said = words(figure)
    assert (f"{scale} scale" if scale != "share" else "share of the ERF in pixels at least as strong") in said
    told = "wide|narrow|random weights|jacobian (amplitude)|4 synthetic images|TRF 41 px|standard error over images"
    assert [each for each in told.split("|") if each not in said] == []
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"r50", "r90", "TRF", "unit"}


@pytest.mark.slow
def test_maps_of_their_own_range_say_it_and_have_no_common_bar():
    results = [made("wide", gaussian(sigma=12.0)), made("narrow", gaussian(sigma=2.0))]
    hint = "--scale share"
    assert hint in words(panel(results, scale="linear"))
    assert "own range" not in words(panel(results, scale="linear"))
    figure = figure_of(results, "panel", colours="own", scale="linear")
    assert len(figure.axes) == 2
    for ax, result in zip(figure.axes, results, strict=True):
        peak = float(np.quantile(display(result.map, "linear"), 0.999))
        assert ax.images[0].norm.vmax == pytest.approx(peak)
        assert f"colours 0 to {peak:.3g}" in words(figure)
    assert "each map on its own range" in words(figure)
    assert hint not in words(figure)
    for alike in ({"scale": "linear"}, {"scale": "share"}):
        own, one = figure_of(results[:1], "panel", colours="own", **alike), panel(results[:1], **alike)
        assert figure_bytes(own, ".png") == figure_bytes(one, ".png")
    # Shares need no range.
    assert figure_bytes(figure_of(results, "panel", colours="own"), ".png") == figure_bytes(panel(results), ".png")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, kind in FIGURES.items() if kind.maps])
def test_every_kind_with_maps_has_both_ranges_and_takes_a_colour_map_for_them_and_their_bar(kind):
    scales = enumerate(reports()[kind] * (1 if kind in ("units", "strip") else 2))
    results = [replace(r, map=replace(r.map, values=r.map.values ** (1 + 0.5 * number))) for number, r in scales]
    peaks = {
        colours: {ax.images[-1].norm.vmax for ax in figure_of(results, kind, colours=colours, scale="linear").axes[:2]}
        for colours in COLOURS
    }
    assert (len(peaks["shared"]), len(peaks["own"])) == (1, 2)
    figure = figure_of(reports()[kind], kind, cmap="gray")
    images = [image for ax in figure.axes for image in ax.images if ax.get_label() != "<colorbar>"]
    assert {image.get_cmap().name for image in images} == {"gray"}
    assert all(bar.mappable.get_cmap().name == "gray" for bar in (ax._colorbar for ax in figure.axes[-1:]) if bar)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [2.0, 4.0, 8.0])
def test_contours_enclose_the_share_that_they_say(sigma):
    erf = made(values=gaussian(sigma=sigma))
    assert not panel([erf]).axes[0].collections
    outlined = panel([erf], contours=(90, 50, 50))
    (lines,) = outlined.axes[0].collections
    # A small ERF is drawn on the part of the map around it.
    (shown,) = windows([erf])
    center = shown.part.erf.center_px
    inner, outer = (np.hypot(*(path.vertices - center).T) for path in lines.get_paths())
    # Of a Gaussian the share within r is 1 - exp(-r^2 / 2 sigma^2). Smoothing by an eighth of the inner radius makes it
    # 1 % wider.
    for radius, share in ((inner, 0.5), (outer, 0.9)):
        np.testing.assert_allclose(radius, sigma * np.sqrt(-2 * np.log(1 - share)), rtol=0.02, atol=0.6)
    assert "contours 50, 90 %" in [text.get_text() for text in outlined.legends[0].get_texts()]
    assert "highest-density regions of 50, 90 %" in words(outlined).replace("\n", " ")


def pixels_alone(figure, suffix: str) -> bytes:
    return figure_bytes(figure, suffix) if suffix == ".png" else b""


@pytest.fixture
def captions_alone(monkeypatch) -> None:
    """Do not draw the files that stand beside the captions."""
    monkeypatch.setattr(draw, "figure_bytes", lambda *_: b"")


@pytest.mark.slow
@pytest.mark.usefixtures("captions_alone")
@pytest.mark.parametrize(
    ("width", "results", "environments"),
    [
        (None, ["one", "two"], ["figure*", "figure*", "figure", "figure"]),
        ("page", ["one", "two"], ["figure*", "figure*", "figure", "figure"]),
        ("text", ["one", "two"], ["figure*"] * 4),
        ("page", ["one"], ["figure*", "figure*"]),
    ],
)
def test_a_figure_environment_scales_to_the_column_or_to_the_page(width, results, environments):
    """The panel of one of several results fills a column where others fill a page."""
    captions = dict(folder_figures([made(name) for name in results], width=width))["figure.tex"].decode()
    assert re.findall(r"\\begin\{(figure\*?)\}", captions) == environments
    if width is None:
        names = ["panel", "profile", "one-layer-u0", "two-layer-u0"]
        graphics = [(rf"width=\textwidth]{{{name}.pdf}}", rf"width=\linewidth]{{{name}.pdf}}") for name in names]
        expected = [pair["*" not in which] for pair, which in zip(graphics, environments, strict=True)]
        assert [rf"\includegraphics[{each}" in captions for each in expected] == [True] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("captions_alone")
@pytest.mark.parametrize("kind", FIGURES)
def test_conditions_stand_in_the_caption_and_in_the_picture_only_if_asked(kind, monkeypatch):
    monkeypatch.setattr(draw, "fitting", lambda _: [])  # in the folder are panels and this kind
    drawn = [result for result in reports()[kind] if result.map is not None] or reports()[kind]
    common = [text for text in shared(drawn)[0] if text]
    assert "jacobian" in " ".join(common)
    caption = dict(folder_figures(reports()[kind], kind=kind))["figure.tex"].decode()
    for is_stated in (True, False):
        text = words(figure_of(reports()[kind], kind, conditions=is_stated)).replace("\n", " ")
        assert [each in text for each in common] == [is_stated] * len(common)
    # Sizes are written as in a paper's table.
    written = [escaped(re.sub(r"(?<=\d)x(?=\d)", "×", each)) for each in common]
    assert [each in caption for each in written] == [True] * len(common)


@pytest.mark.slow
def test_the_font_is_embedded_as_truetype_and_every_map_is_one_image_of_a_vector_file():
    document = figure_bytes(panel([made()], font="STIXGeneral"), ".pdf")
    assert b"STIXGeneral" in document
    assert b"/FontFile2" in document
    assert b"/Subtype /Type3" not in document
    assert b"STIXGeneral" not in figure_bytes(panel([made()]), ".pdf")
    with pytest.raises(ErfscopeError, match=r"^unknown font 'DejaVu San'.*did you mean 'DejaVu Sans'") as caught:
        panel([made()], font="DejaVu San")
    assert "\n" not in str(caught.value)
    results = reports()["strip"]
    root = ElementTree.fromstring(figure_bytes(figure_of(results, "strip"), ".svg"))
    images = [element for element in root.iter() if element.tag.endswith("}image")]
    assert len(images) == len(results) + 1, "a map each, and the colour bar"
    document = figure_bytes(figure_of(results, "strip"), ".pdf")
    assert document.count(b"/Subtype /Image") == len(images)
    assert b"/Subtype /Type0" in document
    assert b"/Subtype /Type3" not in document


@pytest.mark.slow
def test_panels_are_lettered_units_of_different_places_have_theirs_said_and_lines_differ():
    apart = panel([made("one"), made("two", center=(23.0, 39.0))])
    assert "(a)\u00a0one" in words(apart)
    assert "(b)\u00a0two" in words(apart)
    assert "unit 3,3 · at 31, 31 px" in words(apart)
    assert "at 23, 39 px" in words(apart)
    together = words(panel([made("one"), made("two")]))
    assert "at 31, 31 px" not in together
    assert "(a)" not in words(panel([made("one")]))
    results = [made(f"net {number}", gaussian(sigma=4.0 + number)) for number in range(8)]
    lines = figure_of(results, "profile").axes[0].lines
    lines = [line for line in lines if line.get_marker() != "None" and len(line.get_xdata()) > 10]
    looks = {(line.get_marker(), str(line.get_linestyle()), str(line._dash_pattern)) for line in lines}
    assert len(looks) == len(lines) == 8


@pytest.mark.parametrize(
    ("r50", "r90", "lines"),
    [
        ((43.4, 7.0), (116.52, 1.4), ["r50 43 ± 7 px", "r90 116.5 ± 1.4 px"]),
        ((2.7461, 0.014), (3.9, 0.03), ["r50 2.746 ± 0.014 px", "r90 3.90 ± 0.03 px"]),
        ((43.4, None), (116.52, None), ["r50 43.4 px", "r90 117 px"]),
    ],
)
def test_the_digits_of_a_size_follow_its_own_error(r50, r90, lines):
    sizes = {name: MeasureValue(value=v, se=se, kind="radius") for name, (v, se) in (("r50", r50), ("r90", r90))}
    assert set(lines) <= set(words(panel([made(measures=sizes)])).splitlines())


def test_legends_conditions_and_colours_are_those_of_what_is_drawn():
    figure = panel([made(trf=301)])
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"r50", "r90", "unit"}
    assert "TRF 301 px, larger than the input" in words(figure)
    fallen = made("b", weights=Weights(source="random", fallback=True))
    figure = panel([made("a"), fallen])
    said = words(figure).splitlines()
    assert sum("input 64x64" in text for text in said) == 1
    assert "random weights" in said
    assert any(text.startswith("random weights (fallback)") for text in said)
    assert "(fallback)" in words(panel([fallen]))
    values = gaussian() * np.where(np.arange(64) % 2, 1, -1)
    ax = panel([made(values=values, scale="signed")]).axes[0]
    assert ax.images[0].cmap.name == SIGNED
    assert ax.images[0].norm.vmin == -ax.images[0].norm.vmax
    assert panel([made()]).axes[0].images[0].cmap.name == MAGNITUDE
    figure = panel_with_expected(made(), {"r50": 12.5}, heading="FAIL", words=["narrower"])
    (ring,) = by_gid(figure.axes[0], "expected r50")
    assert ring.radius == 12.5
    assert "FAIL" in words(figure)
    assert "narrower" in words(figure)
    assert [maps.round_length(most) for most in (0.3, 1, 4.9, 5, 67, 199, 200)] == [1, 1, 2, 5, 50, 100, 200]


def test_an_overlay_is_transparent_where_the_map_is_weak_and_its_picture_is_grey():
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    first, second = made(picture=picture), made("other", gaussian(sigma=3.0))
    figure = figure_of([first, second], "overlay", scale="power")
    for ax, result in zip(figure.axes[:2], (first, second), strict=True):
        under, over = ax.images
        np.testing.assert_allclose(under.get_array(), picture.mean(axis=-1) / 255)
        order = np.argsort(display(result.map, "power").ravel())
        assert (np.diff(over.get_alpha().ravel()[order]) >= 0).all()
        assert over.get_alpha().min() < 0.05
        assert over.get_alpha().max() < 1
    other = replace(second, input=replace(second.input, sha256="cd"))
    assert len(figure_of([first, other], "overlay").axes) == 2


def test_units_stand_at_their_places():
    results = reports()["units"]
    figure = figure_of(results[::-1], "units")
    places = {tuple(int(8 * i) for i in r.unit.index): r for r in results}
    panels = {
        tuple(int(v) for v in (ax.lines[0].get_ydata()[0], ax.lines[0].get_xdata()[0])): ax for ax in figure.axes[:3]
    }
    assert panels.keys() == places.keys()
    boxes = {at: ax.get_position() for at, ax in panels.items()}
    assert boxes[16, 16].y0 == pytest.approx(boxes[16, 48].y0)
    assert boxes[16, 16].x0 < boxes[16, 48].x0
    assert boxes[48, 16].x0 == pytest.approx(boxes[16, 16].x0)
    assert boxes[48, 16].y0 < boxes[16, 16].y0
    for at, ax in panels.items():
        np.testing.assert_array_equal(ax.images[0].get_array(), display(places[at].map, "share"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [np.full(9, 1 / 9), np.full((3, 5, 7), 1 / 105), np.ones((1, 1)), np.zeros((6, 6)), np.full((4, 4), np.nan)],
)
def test_maps_of_every_shape_can_be_drawn(values):
    result = made(values=values, trf=None, noisy=False)
    for kind in fitting([result]):
        assert Image.open(io.BytesIO(figure_bytes(figure_of([result], kind), ".png"))).size[0] > 100
    assert ("profile" in fitting([result])) == bool(values.sum() > 0)


def test_the_enclosed_mass_goes_through_r50_and_r90_and_marks_their_errors():
    results = reports()["profile"]
    figure = figure_of(results, "profile")
    density, enclosed = figure.axes
    curves = [line for line in enclosed.lines if len(line.get_xdata()) > 10]
    assert len(curves) == 3
    for curve, result in zip(curves, results, strict=True):
        for name, share in (("r50", 0.5), ("r90", 0.9)):
            (at,) = np.flatnonzero(np.asarray(curve.get_xdata()) == result[name].value)
            assert curve.get_ydata()[at] == pytest.approx(share, abs=1e-9)
    marked = {
        (gid, line.get_xdata()[0], line.get_ydata()[0]) for gid in ("r50", "r90") for line in by_gid(enclosed, gid)
    }
    assert marked == {(name, r[name].value, share) for r in results for name, share in (("r50", 0.5), ("r90", 0.9))}
    widths = sorted(np.ptp(band.get_paths()[0].vertices[:, 0]) for band in enclosed.collections)
    np.testing.assert_allclose(widths, sorted(2 * r[name].se for r in results for name in ("r50", "r90")), rtol=1e-9)
    assert len(by_gid(density, "fit")) == 3
    assert "Gaussian fit" in words(figure)
    assert "px" in density.get_xlabel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["profile", "depth", "alpha", "sizes"])
@pytest.mark.parametrize("scale", SCALES)
def test_the_axis_has_the_scale_that_it_says(kind, scale):
    figure = figure_of(reports()[kind], kind, scale=scale)
    ax = figure.axes[0]
    # Maps alone have shares; densities as unlike as those of a narrow and a wide map are drawn on a log axis then.
    scale = {"share": "log" if kind == "profile" else "linear"}.get(scale, scale)
    assert f"{scale} axis" in ax.get_ylabel()
    # A profile says it at its axis alone.
    assert (f"{scale} scale" in words(figure)) == (kind != "profile")
    assert ax.get_yscale() == {"linear": "linear", "log": "log", "power": "function"}[scale]
    if scale == "power":
        assert ax.yaxis.get_transform().transform([16.0])[0] == pytest.approx(16**0.3)
    labels = [tick.get_text() for tick in ax.get_yticklabels(which="both") if tick.get_text()]
    assert len(labels) >= 2
    assert not any("$" in label for label in labels)


def test_depth_shows_the_layers_in_network_order_with_errors_and_the_field():
    layers = reports()["depth"]
    figure = figure_of([layers[2], layers[0], layers[1]], "depth")
    ax = figure.axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b", "c"]
    for name, factor in (("r50", 1), ("r90", 2)):
        (line,) = by_gid(ax, name)
        assert line.get_ydata().tolist() == [4 * factor, 9 * factor, 17 * factor]
    (halves,) = by_gid(ax, "TRF")
    np.testing.assert_allclose(halves.get_ydata(), [4.5, 12.5, 30.5])
    tall = [np.ptp(path.vertices[:, 1]) for bars in ax.collections for path in bars.get_paths()]
    np.testing.assert_allclose(sorted(tall), sorted(0.2 * r * factor for r in (4, 9, 17) for factor in (1, 2)))


def test_depth_has_the_side_of_the_input_shades_what_reads_all_of_it_and_has_no_line_for_everything():
    def shaded(figure) -> list[float]:
        return [part.get_x() + part.get_width() / 2 for part in by_gid(figure.axes[0], "shaded")]

    layers = [*reports()["depth"]]
    figure = figure_of(layers, "depth")
    (side,) = by_gid(figure.axes[0], "side")
    assert set(side.get_ydata()) == {32.0}
    assert (shaded(figure), "TRF before covers the input" in words(figure)) == ([], False)
    layers[1:] = [replace(layer, trf=field(97, (31.0, 31.0), (64, 64))) for layer in layers[1:]]
    figure = figure_of(layers, "depth")
    assert shaded(figure) == [2.0]
    assert "shaded: the TRF of the layer before covers" in " ".join(words(figure).split())
    layers = [*reports()["depth"]]
    layers[1] = replace(layers[1], trf=replace(layers[1].trf, global_by="attention"))
    figure = figure_of(layers, "depth")
    (halves,) = by_gid(figure.axes[0], "TRF")
    assert np.isnan(halves.get_ydata()).tolist() == [False, True, False]
    # Two points apart are no line.
    assert "half the TRF" not in words(figure)
    assert "TRF without a line: the whole input" in words(figure)


@pytest.mark.parametrize(
    ("kind", "over", "sizes"),
    [("alpha", [0, 0.25, 1], [10, 10.25, 11]), ("sizes", [96, 160], [30, 40]), ("training", [2, 10, 100], [8, 12, 20])],
)
def test_sizes_stand_over_what_was_changed_and_alpha_starts_at_the_host(kind, over, sizes):
    (line,) = by_gid(figure_of(reports()[kind], kind).axes[0], "r50")
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (over, sizes)


def sides(*sizes: tuple[int, int], layer="layer") -> list[Result]:
    return [
        made(values=gaussian(size, tuple((n - 1) // 2 * 1.0 for n in size)), layer=layer, id=f"{layer}{size}")
        for size in sizes
    ]


def inches_per_pixel(figure, ax) -> float:
    """How large a pixel of the map is drawn on paper."""
    left, right = ax.transData.transform([(0, 0), (1, 0)])[:, 0]
    return float(right - left) / figure.dpi


@pytest.mark.slow
def test_a_strip_has_the_layers_in_network_order_says_only_what_differs_and_has_room_for_digits():
    figure = figure_of(reports()["strip"], "strip")
    titles = [text.get_text() for text in texts(figure) if text.get_fontweight() == "bold"]
    assert titles == ["(a)\u00a0a", "(b)\u00a0b", "net"]
    assert words(figure).count("input 64x64") == 1
    assert words(figure).count("unit at 31, 31 px") == 1
    assert len(figure.axes) == 3, "two maps, one colour bar"
    assert len(by_gid(figure, "scale bar")) == 1
    figure = figure_of(sides(*((side, side) for side in range(24, 84, 10))), "strip", width="column", columns=6)
    assert len({round(ax.get_position().x0, 3) for ax in figure.axes if by_gid(ax, "unit")}) == 3
    assert "…" not in words(figure)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, "column", "page"])
def test_a_strip_of_sizes_has_one_scale_of_lengths(width):
    results = sides((128, 128), (24, 24), (96, 200))
    figure = figure_of(results, "strip", width=width)
    with drawing():
        figure.draw_without_rendering()
    maps = [ax for ax in figure.axes if by_gid(ax, "unit")]
    assert [ax.images[0].get_extent()[1] for ax in maps] == [23.5, 127.5, 199.5]
    assert len({round(inches_per_pixel(figure, ax), 6) for ax in maps}) == 1
    (bar,) = by_gid(figure, "scale bar")
    assert bar.axes is maps[-1]
    assert words(figure_of(results, "strip", conditions=True)).count("one scale of lengths") == 1
    # In a column a title may need two lines.
    titles = words(figure).replace("\n", " ")
    assert [title in titles for title in ("input 24x24", "input 128x128", "input 96x200")] == [True] * 3


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_fits_its_results_and_what_does_not_fit_is_refused_with_a_reason(kind):
    assert kind in fitting(reports()[kind])
    lone = next(results for results in ([made()], reports()["depth"]) if kind not in fitting(results))
    with pytest.raises(
        ErfscopeError, match=rf"^a figure of kind '{kind}' needs .+; kinds that fit these results: "
    ) as caught:
        figure_of(lone, kind)
    assert str(caught.value).endswith(", ".join(fitting(lone)))
    with pytest.raises(MeasurementError, match="no map to draw"):
        figure_of([sized(4.0)], kind)


REFUSED = [
    ({"kind": "profle"}, "did you mean 'profile'"),
    ({"scale": "logg"}, r"unknown scale 'logg'.*did you mean 'log'"),
    ({"cmap": "virdis"}, r"unknown colour map 'virdis'.*did you mean 'viridis'"),
    ({"path": "x.jpg"}, r"saved as \.png, \.svg or \.pdf, not '\.jpg'"),
    ({"colours": "each"}, "unknown colours 'each'; "),
    ({"width": "colum"}, r"unknown width 'colum'.*did you mean 'column'"),
    *(({"width": wrong}, f"a figure is 60 to 600 mm wide, not {wrong}") for wrong in ("59mm", "601mm")),
    *(({"contours": (50, wrong)}, "per cents of the ERF between 0 and 100") for wrong in (0, 100, -3)),
    *(({"contours": wrong}, "several per cents of the ERF") for wrong in (50, ("50",))),
    ({"kind": "strip", "of": [("one", {}), ("two", {"layer": "o"})]}, "needs layers or input sizes of one model"),
    (
        {"kind": "strip", "of": [("a", {}), ("a", {"convention": "luo"}), ("a", {"layer": "o"})]},
        "needs one unit under one setting at each layer",
    ),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED, ids=[str(asked) for asked, _ in REFUSED])
def test_what_cannot_be_drawn_is_refused_before_drawing(asked, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = dict(asked)
    report = Report(results=tuple(made(label, **more) for label, more in asked.pop("of", [("net", {})])))
    with pytest.raises(ErfscopeError, match=why):
        report.figure(**asked)
    assert list(tmp_path.iterdir()) == []


NASTY = "hf-hub:some-organisation/vit_giant_patch14_reg4_dinov2.lvd142m_$x_1$_<script>_модель_模型_"


def crowd(count: int) -> list[Result]:
    return [made(f"{NASTY}{number}", gaussian(sigma=3.0 + number)) for number in range(count)]


#: How a kind, or so many results, are drawn, and how wide that is in mm.
WIDTHS = (("60mm", 60), ("column", 83), ("89mm", 89), ("text", 139.7), ("page", 174))
CASES = [*((kind, kind, width) for kind in FIGURES for width in ((None, 174), *WIDTHS))]
CASES += [(count, "panel", (None, 174)) for count in (1, 2, 4, 6, 12)]
CASES += [(count, "profile", (None, 174)) for count in (1, 12)]


@pytest.mark.slow
@pytest.mark.parametrize(("of", "kind", "wide"), CASES, ids=[f"{of} {kind} {wide[0]}" for of, kind, wide in CASES])
def test_letters_stay_on_a_sheet_of_the_width_asked_for_apart_from_each_other_and_readable(of, kind, wide):
    results, (width, mm) = reports()[kind] if of == kind else crowd(of), wide
    if kind == "positions" and mm < 139:
        with pytest.raises(ErfscopeError, match=r"needs a width of 139.7 mm; add --width page"):
            figure_of(results, kind, width=width)
        return
    figure = figure_of(results, kind, width=width)
    obtained = figure.get_size_inches()[0] * 25.4
    assert obtained <= 174.01 if width is None else obtained == pytest.approx(mm)
    if width in ("89mm", "text"):
        return
    with drawing():
        figure.draw_without_rendering()
    assert tuple(figure.get_facecolor()) == (1, 1, 1, 1)
    renderer, (across, down) = figure.canvas.get_renderer(), figure.canvas.get_width_height()
    boxes = []
    for text in texts(figure):
        assert text.get_fontsize() >= 7
        box = text.get_window_extent(renderer)
        assert across - box.x1 >= -PIXEL, text.get_text()
        assert width is not None or min(box.x0, box.y0, down - box.y1) >= -PIXEL, text.get_text()
        boxes.append((text.get_text(), box.shrunk(0.98, 0.7)))
    for (text, box), (other, place) in itertools.combinations(boxes if width is None else [], 2):
        assert not box.overlaps(place), (text, other)


@pytest.mark.parametrize("width", ["column", "page"])
def test_names_of_models_as_they_are_called_are_broken_at_their_marks_and_not_cut(width):
    names = ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "convnext_tiny.fb_in22k_ft_in1k_384"]
    names += ["hf-hub:timm/resnet18.a1_in1k", "net"]
    figure = panel([made(name) for name in names], width=width)
    titles = [text.get_text() for text in texts(figure) if text.get_fontweight() == "bold"]
    expected = [f"({tag})\u00a0{name}" for tag, name in zip("abcd", names, strict=True)]
    assert [title.replace("\n", "") for title in titles] == expected
    assert all(line[-1] in "_./:-" for title in titles for line in title.splitlines()[:-1])


@pytest.mark.slow
def test_names_are_text_and_nothing_else_and_the_theme_of_a_notebook_changes_nothing():
    name = "$x$ <script>alert(1)</script> & 模"
    root = ElementTree.fromstring(figure_bytes(panel([made(name)]), ".svg"))
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert name in words(panel([made(name)]))
    plain = figure_bytes(panel([made()]), ".png")
    theme = {"figure.facecolor": "black", "text.color": "red", "font.size": 30, "savefig.dpi": 40}
    with matplotlib.rc_context({**theme, "axes.facecolor": "green", "lines.linewidth": 9}):
        assert figure_bytes(panel([made()]), ".png") == plain


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_figures_are_written_in_every_format_and_the_same_each_time(kind, tmp_path):
    # Pixels of one kind, pages of the next.
    for suffix in (".svg", (".png", ".pdf")[list(FIGURES).index(kind) % 2]):
        figure = Report(results=tuple(reports()[kind])).figure(tmp_path / f"a{suffix}", kind=kind)
        content = (tmp_path / f"a{suffix}").read_bytes()
        if suffix == ".svg":
            assert content == figure_bytes(figure, suffix)
            assert ElementTree.fromstring(content).tag.endswith("svg")
        elif suffix == ".pdf":
            assert content.startswith(b"%PDF")
        else:
            assert np.asarray(Image.open(io.BytesIO(content)).convert("L")).std() > 5


@pytest.mark.slow
def test_a_folder_holds_the_figures_that_fit_under_names_of_their_own(monkeypatch):
    monkeypatch.setattr(draw, "figure_bytes", pixels_alone)
    results = [replace(r, id=name) for r, name in zip(reports()["units"], ("panel", "Profile", "net-u"), strict=True)]
    files = dict(folder_figures(results, scale="log"))
    together = [kind.name for kind in KINDS if kind.in_folder and kind.unfit(results) is None]
    assert {"panel", "profile", "units"} <= {*together}
    names = [f"{name}_0" if name in ("panel", "profile") else name for name in together]
    in_both = [f"{name}{suffix}" for name in ["panel", "Profile", "net-u", *names] for suffix in (".png", ".pdf")]
    assert list(files) == [*in_both, "figure.tex"]
    assert files["panel.png"] == figure_bytes(panel(results[:1], scale="log", conditions=False), ".png")
    assert files["units.png"] == figure_bytes(figure_of(results, "units", scale="log", conditions=False), ".png")


@pytest.mark.slow
@pytest.mark.usefixtures("captions_alone")
def test_a_folder_has_the_kind_that_was_asked_for_and_no_panel_of_one_result_beside_its_own_figure():
    alone = [kind.name for kind in KINDS if kind.in_folder and kind.unfit(reports()["overlay"]) is None]
    names = ["net-layer-u0", *(name for name in alone if name != "panel"), "overlay"]
    found = [name for name, _ in folder_figures(reports()["overlay"], kind="overlay")]
    assert found == [*(f"{name}{suffix}" for name in names for suffix in (".png", ".pdf")), "figure.tex"]
    with pytest.raises(ErfscopeError, match="two or more layers"):
        dict(folder_figures(reports()["units"], kind="depth"))


@pytest.fixture(scope="module")
def fresh() -> Report:
    return erfscope.sweep(
        "test_resnet", weights="random", samples=2, layer="layer1", unit="centre,0x0", measures=["r50", "r90"]
    )


@pytest.fixture(scope="module")
def stored(fresh, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "erf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("erfscope.show.figures.canvas.DPI", 70)
        patch.setattr(draw, "figure_bytes", pixels_alone)
        fresh.save(folder, scale="log")
    return folder


@pytest.mark.slow
def test_the_picture_is_kept_in_stored_reports(fresh, stored):
    again = erfscope.read(stored)
    np.testing.assert_array_equal(again[0].picture, fresh[0].picture)
    assert again[0].picture.dtype == np.uint8
    assert again[0].picture.shape == (160, 160, 3)
    assert again[1].picture is None
    assert len(again.figure(kind="overlay").axes) == 3
    with np.load(io.BytesIO(map_bytes(list(again)))) as arrays:
        assert f"{again[0].id}.picture" in arrays.files
    assert {path.name for path in stored.iterdir()} >= {"panel.png", "profile.png", "units.png"}
    assert (stored / f"{fresh[0].id}.png").read_bytes() == figure_bytes(fresh[0].figure(scale="log"), ".png")


@pytest.mark.slow
def test_the_command_line_draws_what_is_asked_for(stored, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("erfscope.show.figures.canvas.DPI", 70)
    compare = partial(command, "compare", str(stored), "-o")
    assert compare("x.svg", "--figure", "profile", "--scale", "log", "-q")[0] == 0
    assert Path("x.svg").read_bytes() == figure_bytes(erfscope.read(stored).figure(kind="profile", scale="log"), ".svg")
    code, _, told = compare("y.svg", "--figure", "depth", "-q")
    assert (code, "needs two or more layers" in told, Path("y.svg").exists()) == (3, True, False)
    code, _, told = compare("y.json", "--figure", "profile")
    assert (code, "--figure profile has no output; add -o profile.pdf" in told) == (2, True)
    assert compare("wide.svg", "--contours", "50,90", "--width", "page", "-q")[0] == 0
    asked = erfscope.read(stored).figure(contours=(50, 90), width="page")
    assert Path("wide.svg").read_bytes() == figure_bytes(asked, ".svg")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"layer": "stages"}, {"input_size": "64,96"}, {"unit": "all"}, {"insert": "gc@layer3", "alpha": "0"}],
)
@pytest.mark.usefixtures("memory_unplanned")
def test_what_a_figure_needs_is_known_before_anything_is_measured(options):
    given = {"weights": "random", "input_size": 32, "samples": 1, "measures": "r50,r90", **options}
    measured = erfscope.sweep("test_resnet", **given).results
    assert default_kind(measured) == ("positions" if options.get("unit") == "all" else "panel")
    possible = []
    for kind in FIGURES:
        with contextlib.suppress(ErfscopeError):
            check_figure(["test_resnet"], kind=kind, width=None, **given)
            possible.append(kind)
    # What needs one setting of everything else, or certain measures, is refused when it is drawn.
    assert [kind for kind in fitting(measured) if kind not in possible] == []
    asked = {"layer": "depth", "input_size": "sizes", "insert": "alpha"}
    assert [kind for kind in asked.values() if kind in possible] == [asked[name] for name in options if name in asked]
    assert "training" not in possible


def test_positions_are_drawn_at_the_centres_of_their_units():
    result = reports()["positions"][0]
    figure = figure_of([result], "positions")
    panels = [ax for ax in figure.axes if ax.images]
    assert [len(panels), len(figure.axes)] == [2, 4]
    for ax, name in zip(panels, ("r50", "context_r50"), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), getattr(result.positions, name))
        left, right, bottom, top = ax.images[0].get_extent()
        # Unit 3 stands at 31 px, and units are 8 px apart.
        assert (left, right, bottom, top) == (31 - 3.5 * 8, 31 + 4.5 * 8, 31 + 4.5 * 8, 31 - 3.5 * 8)
        (line,) = by_gid(ax, "inside")
        assert sorted(set(line.get_xdata())) == [left + 2 * 8, right - 2 * 8]
        assert ax.get_aspect() == 1
    assert "grey: no gradient" in words(figure)
    assert "clipped / inside" in words(figure)
    assert "r50 (px)" in words(figure)


@pytest.mark.parametrize("space", [(9,), (3, 6, 6)], ids=str)
def test_positions_on_lines_and_volumes_are_drawn(space):
    values = np.ones(tuple(8 * side for side in space)) / np.prod([8.0 * side for side in space])
    figure = figure_of([made(values=values, positions=everywhere(space), noisy=False)], "positions")
    if len(space) == 1:
        (curve,) = by_gid(figure.axes[0], "r50")
        assert len(curve.get_ydata()) == 9
    else:
        assert figure.axes[0].images[0].get_array().shape == (6, 6)
