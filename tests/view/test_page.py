"""The HTML page: every number is the JSON's, nothing is fetched, and no name can do harm."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import made_up as stored
import numpy as np
import pytest
from PIL import Image

import erfscope
from erfscope import ErfMap, ErfscopeError, Report, Result
from erfscope.core import Finding, MeasureValue
from erfscope.core.answer.measures.radial_curve import radial_profile
from erfscope.show.drawn import BRIGHTNESS, SHARES
from erfscope.show.figures.draw import PIXELS, views
from erfscope.show.figures.maps import COVER, colour_map
from erfscope.show.page import html, report_fragment, result_fragment
from erfscope.show.view.drawings import BOTTOM, LEFT, RIGHT, SPLIT, profile, profile_of
from erfscope.show.view.page import breakable, formula, with_formulas

pytestmark = pytest.mark.usefixtures("memory_unplanned")

OPTIONS = {"weights": "random", "samples": 2, "input_size": 64}
#: What a name may hold to break out of a page, its script, its style, a template, a terminal or a reading direction.
HOSTILE = (
    "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{ 7*7 }}{% x"
    " %}&lt;\u202eevil\u2066\x1b[31mred\x00\n"
)


class Page(HTMLParser):
    """Every element with its attributes and its text."""

    VOID = frozenset({"meta", "link", "img", "input", "br", "hr", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        texts: list[str] = []
        self.elements.append((tag, {name: value or "" for name, value in attrs}, texts))
        if tag not in self.VOID:
            self.open.append((tag, texts))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open[-1][0] == tag, f"{tag} closes {self.open[-1][0]}"
        self.open.pop()

    def handle_data(self, data):
        for _, texts in self.open:
            texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            (have, "".join(texts))
            for name, have, texts in self.elements
            if name == tag and all(value in have.get(key, "").split() for key, value in wanted.items())
        ]

    @property
    def numbers(self) -> list[tuple[str, str, str]]:
        """(JSON pointer, full value, text) of every number."""
        return [(a["data-json"], a["data-value"], "".join(texts)) for _, a, texts in self.elements if "data-json" in a]


def at(document, pointer: str):
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def assert_rounded(text: str, value: float | str | None) -> None:
    """The text is the value, rounded to as many places as the text has."""
    if value is None or isinstance(value, str):
        assert text == (value or "–")
        return
    number = text.replace("−", "-")
    scale = Decimal(1)
    for suffix, factor in ((" %", Decimal(100)), (" M", Decimal("1e-6"))):
        if number.endswith(suffix):
            number, scale = number.removesuffix(suffix), factor
    shown = Decimal(number)
    unit = Decimal(1).scaleb(shown.as_tuple().exponent)
    assert abs(shown - Decimal(value) * scale) <= unit / 2 * Decimal("1.000001"), (text, value)


def failed(result: Result, error: str) -> Result:
    nothing = dict.fromkeys(("map", "trf", "unit", "picture", "cost", "computed"))
    nothing |= {"measures": {}, "layer": "", "findings": (), "status": "error", "error": error}
    return replace(result, id=f"{result.id}-failed", label="broken", model="broken", **nothing)


@pytest.fixture(scope="module")
def report() -> Report:
    compared = erfscope.compare({"Res": "test_resnet", "ViT": "test_vit"}, halo=True, measures="all", **OPTIONS)
    inner = erfscope.analyze("test_resnet", wrt="layer1", convention="signed", **OPTIONS)
    kim = erfscope.analyze("test_resnet", convention="kim", **OPTIONS)
    others = (replace(inner, id="inner", label="Inner"), replace(kim, id="kim", label="Kim"))
    return replace(compared, results=(*compared, failed(compared[0], "its weights hold NaN"), *others))


@pytest.fixture(scope="module")
def page(report) -> Page:
    return Page(html(report))


def made_up(label: str, shape: tuple[int, ...], seed: int = 0) -> Result:
    """A result without a model: noise, which no picture file can compress."""
    rng = np.random.default_rng(seed)
    values, ones = rng.random(shape), (1.0,) * len(shape)
    center = tuple((side - 1) / 2 for side in shape)
    erf = ErfMap(values=values / values.sum(), center_px=center, stride_px=ones, cell_px=ones)
    picture = rng.integers(0, 256, (*shape, 3), dtype=np.uint8) if len(shape) == 2 else None
    changes = {"map": erf, "sums": None, "picture": picture, "trf": None}
    return replace(stored.result(), id=f"{label}-{seed}", label=f"{label} {seed}", **changes)


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.slow
def test_every_number_is_the_one_of_the_json_rounded_and_none_is_left_out(report, page):
    assert_rounded("62.5", 62.5349)
    for wrong, number in (("62.6", 62.5349), ("56 %", 0.5683)):
        with pytest.raises(AssertionError):
            assert_rounded(wrong, number)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert len(page.numbers) > 300
    for pointer, full, text in page.numbers:
        value = at(document, pointer)
        if isinstance(value, int | float):
            assert float(full) == value, pointer
        else:
            assert full == (value or ""), pointer
        assert_rounded(text, value)
    shown = {pointer for pointer, _, _ in page.numbers}
    for index, entry in enumerate(document["results"]):
        for name, measure in entry["measures"].items():
            where = f"/results/{index}/measures/{name}"
            assert {f"{where}/value", f"{where}/of_input", f"{where}/of_trf"} <= shown
            assert (f"{where}/se" in shown) is (measure["se"] is not None)
            assert (f"{where}/image_px" in shown) is ("image_px" in measure)
        for name in set(entry["differences"] or {}) - {"to"}:
            assert f"/results/{index}/differences/{name}/value" in shown
    assert "/results/4/published/radial_cumulative_mass/40" in shown


@pytest.mark.slow
def test_growth_over_layers_and_sizes_of_every_unit_have_sections_where_they_were_measured():
    stages = stored.stages()
    text = html(stages)
    section = Page(text.partition('<section aria-labelledby="depth">')[2].partition("</section>")[0])
    assert [text for _, text in section.all("h3")] == ["resnet18", "vit_tiny"]
    assert "r50 grows up to the last layer: layer4 adds 18.0 ± 0.4 px to layer3." in section.all("p")[0][1]
    assert len(section.all("img")) == 1
    many = [replace(row, label=str(n), id=f"{n}-{row.layer}") for n in range(13) for row in stages.results[:2]]
    for results, is_there in ((stages.results[:1], False), (many[:-2], True), (many, False)):
        assert ("Field by depth" in html(replace(stages, results=tuple(results)))) is is_there
    every = erfscope.analyze("test_resnet", **{**OPTIONS, "samples": 1, "unit": "all", "measures": "r50"})
    page = html(Report(results=(every, replace(every, id="alone", positions=None))))
    picture = r'<figure class="positions">\s*<img src="(data:[^"]+)" alt="r50 and context_r50 of every unit'
    (uri,) = re.findall(picture, page)
    assert decoded(uri).width == 1370


@pytest.mark.slow
def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(report, page):
    for _, attributes, _ in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), attributes
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.findall(r"url\((?!\"data:)", html(report))
    assert "@import" not in html(report)
    (script,) = page.all("script")
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = next(a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}';" in policy


@pytest.mark.slow
def test_a_result_that_failed_is_a_row_with_its_reason_and_a_difference_names_what_it_is_taken_from(page):
    (row,) = page.all("tr", class_="failed")
    assert [word in row[1] for word in ("broken", "its weights hold NaN", "error")] == [True] * 3
    rows = [text for _, text in page.all("th", scope="row")]
    assert any("ViT" in text and "Δ vs first" in text for text in rows)
    assert not any("Res" in text and "minus" in text for text in rows)


@pytest.mark.slow
def test_formulas_are_set_outside_titles_and_names_are_not(page):
    assert formula("sum_c e_c y_c") == "Σ<sub>c</sub> <i>e</i><sub>c</sub> <i>y</i><sub>c</sub>"
    assert formula("sum_s |g_s|") == "Σ<sub>s</sub> |<i>g</i><sub>s</sub>|"
    assert formula("sqrt(H^2 + W^2) / 4") == "√(<i>H</i><sup>2</sup> + <i>W</i><sup>2</sup>) / 4"
    assert formula("sigma_major / sigma_minor of a unit") == "sigma_major / sigma_minor of a unit"
    set_ = "x_large, p: Σ<sub>s</sub> <i>g</i><sub>s</sub><sup>2</sup> &lt;b&gt;"
    assert with_formulas("x_large, p: sum_s g_s^2 <b>") == set_
    assert breakable("vit_<b>_16") == "vit_<wbr>&lt;b&gt;_<wbr>16"
    texts = [text for tag in ("p", "dd") for _, text in page.all(tag)]
    assert [text for text in texts if re.search(r"sum_|sqrt|\^\d", text)] == []
    assert any("√" in text for text in texts)


@pytest.mark.slow
def test_random_weights_are_said_in_front_results_of_one_name_told_apart_and_cells_sorted_by_image_pixels(report, page):
    (shout,) = page.all("p", class_="shout")
    assert "RANDOM WEIGHTS (random, seed 0)" in shout[1]
    weights = replace(report[0].weights, fallback=True, reason="the hub is unreachable")
    mixed = Report(results=(replace(report[0], weights=weights), *report.results[1:]))
    texts = [text for _, text in Page(html(mixed)).all("p", class_="shout")]
    assert texts[0].startswith("Res: RANDOM WEIGHTS (the hub is unreachable)")
    trained = replace(weights, source="pretrained", fallback=False, reason=None)
    assert not Page(html(Report(results=(replace(report[0], weights=trained),)))).all("p", class_="shout")
    results = tuple(replace(report[0], label="test_resnet", id=layer, layer=layer) for layer in ("layer2", "layer3"))
    layers = Page(html(Report(results=results)))
    assert [text for _, text in layers.all("h3")] == ["test_resnet · layer2", "test_resnet · layer3"]
    assert "How far test_resnet looks" in layers.all("h1")[0][1]
    shown, cells = f"{report['Inner']['r50'].value:.0f}", page.all("td", class_="num")
    cell = next(a for a, text in cells if shown in text and text.endswith("cells"))
    assert float(cell["data-sort"]) == pytest.approx(4 * report["Inner"]["r50"].value)
    (head,) = [text for _, text in page.all("th", scope="col") if text.startswith("r50")]
    assert head == "r50"
    alone = Page(html(Report(results=(report["Inner"], report["Inner"]))))
    assert [text for _, text in alone.all("th", scope="col") if text.startswith("r50")] == ["r50 cells"]


@pytest.mark.slow
def test_rings_fields_and_sizes_lie_where_the_numbers_say_and_maps_stand_side_by_side(report, page):
    for name in ("r50", "r90"):
        drawn = {float(a["r"]) for a, _ in page.all("circle", class_=name) if "vector-effect" in a}
        assert drawn == {r[name].value for r in report if r.map is not None}
    fields = [r.trf for r in report if r.trf is not None and not r.trf.is_global]
    for attributes, _ in page.all("rect", class_="field"):
        sides = (float(attributes["height"]), float(attributes["width"]))
        assert sides in {tuple(map(float, trf.size_px)) for trf in fields}
    boxes = {a["viewbox"] for a, _ in page.all("svg", class_="map")}
    assert boxes == {"-0.5 -0.5 64 64", "-0.5 -0.5 16 16"}
    ticks = [(float(a["x"].rstrip("%")), float(text)) for a, text in page.all("text") if a.get("x", "").endswith("%")]
    end = ticks[-1][1]
    assert ticks[-1][0] == 100
    image = [r for r in report if r.ok and r.wrt == "image"]
    at_r50 = [float(a["cx"].rstrip("%")) for a, _ in page.all("circle", class_="r50") if a.get("cx", "").endswith("%")]
    assert at_r50[:2] == pytest.approx([100 * r["r50"].value / end for r in image[:2]], abs=6e-4)
    # Of the inner map in image pixels: its cells are 4 wide.
    assert at_r50[2] == pytest.approx(100 * 4 * report["Inner"]["r50"].value / end, abs=6e-4)
    errors = [(float(a["x1"].rstrip("%")), float(a["x2"].rstrip("%"))) for a, _ in page.all("line", class_="error")]
    r50 = report[0]["r50"]
    assert errors[0] == pytest.approx((100 * (r50.value - r50.se) / end, 100 * (r50.value + r50.se) / end), abs=6e-4)
    shown = [index for index, result in enumerate(report) if result.map is not None]
    assert [a["href"] for a, _ in page.all("a", class_="multiple")] == [f"#result-{index}" for index in shown]
    assert [a["href"] for a, _ in page.all("use")] == [f"#map-{index}" for index in shown]
    assert {a["id"] for a, _ in page.all("g") if "id" in a} == {f"map-{index}" for index in shown}
    text = html(report)
    places = [text.index(f'id="{name}"') for name in ("side-by-side", "glance", "numbers", "maps")]
    assert places == sorted(places)
    assert text.count('<details class="fold">') == len(report)
    alone = html(Report(results=(report[0],)))
    assert "side-by-side" not in alone
    assert '<details class="fold">' not in alone


@pytest.mark.slow
def test_the_profile_passes_through_r50_and_r90_and_a_steep_density_has_room_for_its_numbers(report):
    curve = profile_of(report[0])
    drawn = profile(report[0], curve)
    for (name, x, y), share in zip(drawn.marks, (0.5, 0.9), strict=True):
        assert y == pytest.approx(BOTTOM - share * (BOTTOM - SPLIT), abs=1e-6)
        assert (x - LEFT) / (RIGHT - LEFT) == pytest.approx(report[0][name].value / curve.radius_px[-1], rel=0.06)
    enclosed = [tuple(map(float, point.split(","))) for point in drawn.enclosed.split()]
    assert all(one[0] < two[0] and one[1] >= two[1] for one, two in itertools.pairwise(enclosed))
    assert enclosed[-1][1] == pytest.approx(SPLIT, abs=0.06)
    rows, cols = np.indices((41, 41)) - 20.0
    values = np.where(np.hypot(rows, cols) < 15, 1.0, 1e-4)
    erf = ErfMap(values=values / values.sum(), center_px=(20.0, 20.0), stride_px=(1.0, 1.0))
    densities = profile(report[0], radial_profile(erf)).densities
    assert [tick.text for tick in densities] == ["10⁻⁴", "0.01", "1"]


@pytest.mark.slow
def test_every_map_is_there_on_every_scale_and_says_which(report, page):
    pictures = page.all("image", class_="r")
    # One range or another makes no difference to shares.
    assert len(pictures) == (2 * 3 + 1) * sum(r.map is not None for r in report)
    assert {max(decoded(attributes["href"]).size) for attributes, _ in pictures} == {64, 16}
    for scale in ("share", "linear", "log", "power"):
        assert all(f"{scale} scale" in text for _, text in page.all("span", class_=f"s-{scale}"))
    for text, scale in ((page, "share"), (Page(html(report, scale="log")), "log")):
        assert [a["id"] for a, _ in text.all("input", name="scale") if "checked" in a] == [f"scale-{scale}"]
    with pytest.raises(ErfscopeError, match="unknown scale 'cubic'"):
        html(report, scale="cubic")


def test_maps_have_the_colours_that_are_asked_for_one_to_three_axes_and_the_field_that_is_seen():
    page = html(Report(results=(made_up("grey", (64, 64)),)), cmap="gray")
    uris = re.findall(r"(?<!src=\")data:image/png;base64,[A-Za-z0-9+/=]+", page)
    colours = [np.asarray(decoded(uri).convert("RGB"), dtype=int) for uri in uris]
    assert len(colours) > 1
    assert all((each == each[..., :1]).all() for each in colours)
    line = made_up("line", (50,))
    line = replace(line, measures={"r50": MeasureValue(value=5.0, kind="radius")})
    film = replace(made_up("film", (3, 20, 30)), frame_mass=(0.2, 0.3, 0.5))
    page = Page(html(Report(results=(line, film))))
    assert {a["viewbox"] for a, _ in page.all("svg", class_="map")} == {"-0.5 -0.5 50 6", "-0.5 -0.5 30 20"}
    assert {float(a["x1"]) for a, _ in page.all("line", class_="r50") if "vector-effect" in a} == {19.5, 29.5}
    assert ("/results/1/frame_mass/2", "0.5", "50.0 %") in page.numbers
    result = made_up("field", (40, 40))

    def drawn(first: int, last: int) -> int:
        trf = stored.box_field(((first, last),) * 2, (40, 40), center_px=(20.0, 20.0))
        shown = replace(result, map=replace(result.map, trf=trf), trf=trf)
        return len(Page(html(Report(results=(shown,)))).all("rect", class_="field"))

    assert [drawn(10, 29), drawn(10, 45), drawn(-5, 45)] == [4, 4, 0]


@pytest.mark.parametrize("scale", ["share", "linear"])
def test_the_image_is_seen_where_the_map_is_weak_and_covered_where_it_is_strong(scale):
    result = made_up("overlay", (64, 64))
    values = np.zeros((64, 64))
    values[:, :32] = 1 / (64 * 32)
    erf = replace(result.map, values=values)
    green = np.full((64, 64, 3), (0, 150, 0), dtype=np.uint8)
    (view,) = views([replace(result, map=erf, picture=green)], longest=64)
    shown = next(each for each in view.overlaid if each.scale == scale)
    pixels = np.asarray(decoded(shown.uri), dtype=float)
    # The image is grey, so that all colour is the map's; JPEG rounds.
    np.testing.assert_allclose(pixels[:, 40:], 50, atol=6)
    strength = 1.0 if scale == "linear" else float(np.interp(0.5, SHARES, BRIGHTNESS))
    colour = 255 * np.array(colour_map(signed=False)(strength)[:3])
    expected = 50 * (1 - COVER * strength) + colour * COVER * strength
    np.testing.assert_allclose(pixels[:, :24].mean((0, 1)), expected, atol=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pick", ["label", "error", "layer", "findings", "model", "wrt", "insert", "reason", "settings", "transform"]
)
def test_names_can_do_no_harm(report, pick):
    first = report[0]
    changes = {
        "findings": {pick: (Finding(code="x", text=HOSTILE),)},
        "reason": {"weights": replace(first.weights, fallback=True, reason=HOSTILE)},
        "transform": {"input": replace(first.input, transform=HOSTILE, text=HOSTILE, dead=(HOSTILE,))},
        "error": {"error": HOSTILE, "status": "error"},
        "settings": {},
    }
    settings = {"images": HOSTILE, HOSTILE: [HOSTILE]} if pick == "settings" else {}
    bad = replace(first, **changes.get(pick, {pick: HOSTILE}))
    poisoned = Report(results=(bad, report[1]), settings=settings)
    plain = Page(html(Report(results=(first, report[1]))))
    for text in (html(poisoned), report_fragment(poisoned), result_fragment(bad)):
        found = Page(text)
        assert len(found.all("script")) == (1 if "<html" in text else 0)
        assert not found.all("img")
        assert not [a for _, a, _ in found.elements if any(name.startswith("on") for name in a)]
        assert not set("\u202e\u2066\x1b\x00") & set(text)
        assert found.open == []
        text.encode()
    found = Page(html(poisoned))
    assert found.all("script") == plain.all("script")
    everything = "".join(text for _, text in found.all("body")) + "".join(str(a) for _, a, _ in found.elements)
    assert "{{ 7*7 }}{% x %}&lt;?evil??[31mred?" in everything


@pytest.mark.slow
def test_pages_stay_small_whatever_the_maps():
    noise = [made_up("noise", (224, 224), seed) for seed in range(60)]
    for count, limit in ((12, 5e6), (60, 10e6)):
        assert len(html(Report(results=tuple(noise[:count])))) < limit
    assert PIXELS[0] == (4, 320)


@pytest.mark.slow
def test_no_style_is_asked_anew_at_every_node_that_is_read(page):
    """A browser that had read 1,400 models with ``:root:has(...)`` in force was at it after minutes."""
    (style,) = ("".join(texts) for tag, _, texts in page.elements if tag == "style")
    assert "data-scale" in style
    assert not re.search(r"(:root|html|body|main)\S*:has\(", style)


def test_a_report_without_results_is_a_page_and_one_without_a_usable_result_says_so_and_why(report):
    page = Page(html(Report(results=())))
    assert page.all("h1")
    assert not page.all("table")
    bad = [replace(failed(report[0], f"reason {n}"), id=f"b{n}", label=f"net {n}") for n in range(3)]
    page = Page(html(Report(results=tuple(bad))))
    assert [text for _, text in page.all("h1")] == ["Nothing could be measured"]
    assert [text for _, text in page.all("li")] == [f"net {n} reason {n}" for n in range(3)]
    assert page.all("table") == []
    assert "Maps" not in [text for _, text in page.all("h2")]


@pytest.mark.slow
def test_fragments_have_the_numbers_and_leave_the_notebook_alone(report):
    document = report.to_json()
    table = Page(report._repr_html_())
    alone = [Page(result._repr_html_()) for result in report]
    for pointer, full, text in table.numbers:
        assert_rounded(text, at(document, pointer))
        assert full in ("", repr(at(document, pointer)))
    for result, found in zip(report, alone, strict=True):
        single = Report(results=(result,)).to_json()
        for pointer, _, text in found.numbers:
            assert_rounded(text, at(single, pointer))
        assert len(found.all("svg")) == (result.map is not None)
    assert "its weights hold NaN" in report[2]._repr_html_()
    shown = {pointer.rpartition("/measures/")[2] for pointer, _, _ in alone[0].numbers}
    assert shown >= {"r50/value", "r50/se", "r90/value"}
    for found in (table, *alone):
        assert not {name for name, _, _ in found.elements} & {"script", "style", "link", "html", "body"}
        assert all("id" not in attributes for _, attributes, _ in found.elements)


@pytest.mark.slow
def test_a_page_is_written_alone_and_into_folders(report, tmp_path, monkeypatch):
    monkeypatch.setattr("erfscope.show.figures.draw.figure_bytes", lambda *_: b"")
    target = tmp_path / "erf.html"
    report.save(target)
    assert target.read_text(encoding="utf-8") == html(report)
    with pytest.raises(ErfscopeError, match="exists already"):
        report.save(target)
    report.save(target, force=True, scale="power")
    assert target.read_text(encoding="utf-8") == html(report, scale="power")
    single = Report(results=report.results[:1], settings=report.settings)
    single.save(tmp_path / "erf")
    assert (tmp_path / "erf" / "index.html").read_text(encoding="utf-8") == html(single, in_folder=True)
    assert html(erfscope.read(tmp_path / "erf")).count("<image") == html(single).count("<image")


def test_jinja_has_one_door():
    core = Path(erfscope.__file__).parent
    imports = re.compile(r"^\s*(from|import) jinja2", re.M)
    users = [path.relative_to(core).as_posix() for path in core.rglob("*.py") if imports.search(path.read_text())]
    assert users == ["show/view/page.py"]
