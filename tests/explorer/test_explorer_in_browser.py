"""The explorer's page in a browser: it shows the unit that is pointed at, in time and in silence."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_explorer import OPTIONS, SIZE, decoded, explorer, masses, net, picture, spatial  # noqa: F401
from test_page_in_browser import HOSTILE, browser, opened, overflow, requests  # noqa: F401
from torch import nn

import erfscope
from erfscope.apps.explore.page import Explorer
from erfscope.apps.explore.planes import levels
from erfscope.apps.explore.stages import ExploredUnit, Stage
from erfscope.show import plot
from erfscope.show.figures.maps import COVER

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("memory_unplanned")]

PLACES = [(row, col) for row in (0.02, 0.37, 0.61, 0.97) for col in (0.03, 0.29, 0.52, 0.74, 0.96)]
MOVE = """
const screen = document.querySelectorAll('.screen')[arguments[3] || 0], box = screen.getBoundingClientRect();
const place = { clientX: box.left + arguments[1] * box.width, clientY: box.top + arguments[0] * box.height };
const done = arguments[arguments.length - 1];
const send = (type) => screen.dispatchEvent(new PointerEvent(type, { ...place, bubbles: true, pointerId: 1 }));
send('pointermove');
requestAnimationFrame(() => done());
"""


@pytest.fixture(scope="module")
def address(explorer, tmp_path_factory) -> str:  # noqa: F811
    target = tmp_path_factory.mktemp("explorer") / "explorer.html"
    explorer.save(target)
    return target.as_uri()


@pytest.fixture(scope="module")
def two(picture, tmp_path_factory) -> tuple[str, Explorer]:  # noqa: F811
    found = erfscope.explore([net(), net()], picture, grid=3, **{**OPTIONS, "layer": ["near", "output"]})
    target = tmp_path_factory.mktemp("explorer") / "two.html"
    found.save(target)
    return target.as_uri(), found


def start(browser: Chrome, address: str, **given: object) -> None:  # noqa: F811
    opened(browser, address, **given)
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.body.dataset.ready === ''"))


def point(browser: Chrome, row: float, col: float, model: int = 0) -> None:  # noqa: F811
    """Move the pointer to a place of the picture, and wait for the next one that is drawn."""
    browser.execute_async_script(MOVE, row, col, None, model)


def choose(browser: Chrome, stage: int) -> None:  # noqa: F811
    browser.find_elements(By.CSS_SELECTOR, ".stages button")[stage].send_keys(Keys.ENTER)


def nearest(stage: Stage, row: float, col: float) -> ExploredUnit:
    place = row * SIZE[0] - 0.5, col * SIZE[1] - 0.5
    return min(stage.units, key=lambda unit: np.hypot(*np.subtract(unit.center_px, place)))


def drawn(browser: Chrome) -> None:  # noqa: F811
    """Wait until the page, which draws with the next frame, has drawn."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def stage_shown(browser: Chrome) -> str:  # noqa: F811
    drawn(browser)
    return browser.find_element(By.CSS_SELECTOR, ".depth output").text


def unit_shown(browser: Chrome, model: int = 0) -> tuple[int, ...]:  # noqa: F811
    drawn(browser)
    shown = browser.find_elements(By.CSS_SELECTOR, ".screen")[model].get_attribute("data-unit")
    return tuple(map(int, shown.split(",")))


def numbers(browser: Chrome) -> dict[str, list[str]]:  # noqa: F811
    drawn(browser)
    script = """return [...document.querySelectorAll('.numbers tbody tr')].map((row) => [row.cells[0].firstChild.data,
        ...[...row.cells].slice(1).map((cell) => cell.dataset.value || cell.textContent)])"""
    return {name: values for name, *values in browser.execute_script(script)}


def whole(stage: Stage, unit: ExploredUnit, values: np.ndarray) -> np.ndarray:
    """Values of a unit's blocks at each pixel of the picture."""
    found = np.zeros([-(-side // stage.block) for side in SIZE])
    rows, cols = (slice(first // stage.block, last // stage.block + 1) for first, last in unit.field_px)
    found[rows, cols] = values
    return np.kron(found, np.ones((stage.block, stage.block)))[: SIZE[0], : SIZE[1]]


def test_the_unit_nearest_to_the_pointer_is_shown_with_its_map_and_numbers(browser, address, explorer):  # noqa: F811
    start(browser, address)
    script = "return document.querySelector('.screen canvas').toDataURL().split(',')[1]"
    palette = plot.colour_map(signed=False)(np.arange(256), bytes=True)[:, :3].astype(float)
    for number, stage in enumerate(explorer.models[0].stages):
        choose(browser, number)
        for place in PLACES:
            point(browser, *place)
            unit = nearest(stage, *place)
            assert unit_shown(browser) == unit.index
        seen = Image.open(io.BytesIO(base64.b64decode(browser.execute_script(script))))
        shown = np.asarray(seen.convert("RGB"), dtype=float)
        expected = whole(stage, unit, decoded(unit.planes[0].levels)[1])
        colours = palette[np.floor(255 * expected + 0.5).astype(int)]
        # The picture below is grey, so that all colour is the map's.
        colour = COVER * expected * (colours[..., 0] - colours[..., 2])
        np.testing.assert_allclose(shown[..., 0] - shown[..., 2], colour, atol=4)
        assert float(numbers(browser)["r50"][0]) == unit.measures["r50"]
        assert float(numbers(browser)["erf_trf"][0].replace("–", "nan")) == pytest.approx(
            unit.measures["erf_trf"] if unit.measures["erf_trf"] is not None else float("nan"), nan_ok=True
        )
    assert browser.get_log("browser") == []
    assert requests(browser) == {address}


def test_a_real_pointer_a_click_and_the_small_pictures_do_the_same(browser, address, explorer):  # noqa: F811
    start(browser, address)
    screen = browser.find_element(By.CSS_SELECTOR, ".screen")
    width, height = screen.size["width"], screen.size["height"]
    ActionChains(browser).move_to_element_with_offset(screen, int(0.3 * width), int(-0.2 * height)).click().perform()
    stage = explorer.models[0].stages[1]
    assert unit_shown(browser) == nearest(stage, 0.3, 0.8).index
    drawn(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".pin-maps figure")) == 1
    small = browser.find_elements(By.CSS_SELECTOR, ".stages .card-map")[0]
    ActionChains(browser).move_to_element(small).perform()
    assert stage_shown(browser) == "near"
    assert unit_shown(browser) == nearest(explorer.models[0].stages[0], 0.5, 0.5).index


def test_keys_go_through_units_and_stages_and_pin(browser, address, explorer):  # noqa: F811
    start(browser, address)
    point(browser, 0.02, 0.02)
    screen = browser.find_element(By.CSS_SELECTOR, ".screen")
    far, last = explorer.models[0].stages[1:]
    assert unit_shown(browser) == far.units[0].index
    screen.send_keys(Keys.ARROW_RIGHT)
    screen.send_keys(Keys.ARROW_DOWN)
    assert unit_shown(browser) == far.units[far.grid[1] + 1].index
    screen.send_keys(Keys.ENTER)
    screen.send_keys(Keys.PAGE_DOWN)
    slider = browser.find_element(By.CSS_SELECTOR, ".depth input")
    assert stage_shown(browser) == last.name
    slider.send_keys(Keys.ARROW_LEFT)
    assert stage_shown(browser) == far.name
    screen.send_keys(Keys.ARROW_LEFT)
    screen.send_keys(Keys.ENTER)
    drawn(browser)
    heads = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".pin-numbers thead th")]
    pinned = [far.units[far.grid[1] + place].index for place in (1, 0)]
    assert heads == ["", *(f"far ({row}, {col})" for row, col in pinned)]
    browser.find_element(By.CSS_SELECTOR, ".pin-maps button").click()
    drawn(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".pin-maps figure")) == 1
    screen.send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.CSS_SELECTOR, ".pins").is_displayed()
    assert browser.get_log("browser") == []


def test_who_sees_a_pixel_or_a_box_is_read_from_the_same_maps(browser, address, explorer):  # noqa: F811
    start(browser, address)
    browser.find_element(By.CSS_SELECTOR, "label:has(input[value=seen])").click()
    screen = browser.find_element(By.CSS_SELECTOR, ".screen")
    for number, stage in enumerate(explorer.models[0].stages):
        maps = [whole(stage, unit, masses(unit.planes[0].levels) / stage.block**2) for unit in stage.units]
        choose(browser, number)
        point(browser, 0.4, 0.3)
        assert_seen(numbers(browser), stage, [each[int(0.4 * SIZE[0]), int(0.3 * SIZE[1])] for each in maps])
    # A made-up pointer cannot be captured.
    browser.execute_script("Element.prototype.setPointerCapture = () => {}")
    browser.execute_async_script(MOVE.replace("pointermove", "pointerdown"), 0.3, 0.2, None, 0)
    point(browser, 0.7, 0.5)
    rows, cols = (slice(int(a * side), int(b * side) + 1) for a, b, side in ((0.3, 0.7, SIZE[0]), (0.2, 0.5, SIZE[1])))
    assert_seen(numbers(browser), stage, [each[rows, cols].sum() for each in maps])
    drawn(browser)
    assert "this box" in browser.find_element(By.CSS_SELECTOR, ".sentence").text
    assert screen.find_elements(By.CSS_SELECTOR, ".probe")


def assert_seen(shown: dict[str, list[str]], stage: Stage, shares: list[float]) -> None:
    if not max(shares):
        assert shown["strongest unit"] == ["–"]
        return
    strongest = stage.units[int(np.argmax(shares))]
    assert shown["strongest unit"] == [f"({strongest.index[0]}, {strongest.index[1]})"]
    assert float(shown["its share"][0]) == pytest.approx(max(shares), rel=1e-6)
    assert shown["any"] == [str(np.count_nonzero(shares))]


def test_names_run_nothing(browser, explorer, tmp_path):  # noqa: F811
    (model,) = explorer.models
    stages = tuple(dataclasses.replace(stage, name=HOSTILE) for stage in model.stages)
    conditions = dataclasses.replace(model.conditions, label=HOSTILE)
    hostile = dataclasses.replace(model, stages=stages, conditions=conditions)
    dataclasses.replace(explorer, models=(hostile, hostile)).save(tmp_path / "explorer.html")
    start(browser, (tmp_path / "explorer.html").as_uri(), width=390)
    point(browser, 0.5, 0.5)
    browser.find_element(By.ID, "pin").click()
    drawn(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "img, script:not(#data, body > script)") == []
    assert "<img src=x" in browser.find_element(By.TAG_NAME, "h1").text
    assert browser.get_log("browser") == []
    assert overflow(browser) == 0


def test_two_models_share_the_pointer(browser, two):  # noqa: F811
    address, found = two
    start(browser, address)
    for model in (0, 1):
        point(browser, 0.8, 0.2, model)
        for other in (0, 1):
            assert unit_shown(browser, other) == nearest(found.models[other].stages[0], 0.8, 0.2).index
    drawn(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".numbers thead th")) == 3


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (768, "light")])
def test_a_telephone_and_a_tablet_show_all_of_it(browser, address, two, width, scheme):  # noqa: F811
    for page in (address, two[0]):
        start(browser, page, width=width, scheme=scheme)
        for _ in range(2):
            point(browser, 0.7, 0.7)
            browser.find_element(By.ID, "pin").click()
        assert overflow(browser) == 0
        assert browser.get_log("browser") == []


def test_a_touch_points_and_pins_nothing(browser, address, explorer):  # noqa: F811
    start(browser, address, width=390)
    screen = browser.find_element(By.CSS_SELECTOR, ".screen")
    box = browser.execute_script(
        "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width, b.height]", screen
    )
    place = {"x": box[0] + 0.8 * box[2], "y": box[1] + 0.2 * box[3]}
    for kind, points in (("touchStart", [place]), ("touchEnd", [])):
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert unit_shown(browser) == nearest(explorer.models[0].stages[1], 0.2, 0.8).index
    drawn(browser)
    assert browser.find_elements(By.CSS_SELECTOR, ".pin-maps figure") == []


def test_a_field_that_fills_the_picture_has_no_inset_and_pictures_follow_the_pointer_at_once(browser, address):  # noqa: F811
    start(browser, address)
    choose(browser, 2)
    drawn(browser)
    assert not browser.find_element(By.CSS_SELECTOR, ".screen .inset").is_displayed()
    start(browser, address)
    script = """
const screen = document.querySelector('.screen'), box = screen.getBoundingClientRect(), times = [], done = arguments[0];
const next = (k) => {
  if (k === 100) return done(times);
  const before = performance.now();
  const place = { clientX: box.left + (k / 100) * box.width, clientY: box.top + ((37 * k % 100) / 100) * box.height };
  screen.dispatchEvent(new PointerEvent('pointermove', place));
  requestAnimationFrame(() => { times.push(performance.now() - before); next(k + 1); });
};
next(0);"""
    assert np.median(browser.execute_async_script(script)) < 50


def test_pinned_units_are_printed(browser, address, tmp_path: Path):  # noqa: F811
    start(browser, address)
    browser.find_element(By.ID, "pin").click()
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert pdf.startswith(b"%PDF-")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        drawn(browser)
        shown = {name: browser.find_element(By.CSS_SELECTOR, name).is_displayed() for name in (".bench", ".pin-maps")}
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == {".bench": False, ".pin-maps": True}


def test_a_click_in_a_slice_moves_the_others_to_its_unit(browser, tmp_path):  # noqa: F811
    module, options, _ = spatial("volume")
    erfscope.explore(module, grid=9, **options).save(tmp_path / "volume.html")
    start(browser, (tmp_path / "volume.html").as_uri())
    row_slice = browser.find_elements(By.CSS_SELECTOR, ".screen .panel")[2]
    depth, width = row_slice.size["height"], row_slice.size["width"]
    # The slice runs down along depth (6 planes), and across along columns (8 of them).
    offset = int((6.5 / 8 - 0.5) * width), int((1.5 / 6 - 0.5) * depth)
    ActionChains(browser).move_to_element_with_offset(row_slice, *offset).click().perform()
    depth_shown, row_shown, col_shown = unit_shown(browser)
    assert (depth_shown, col_shown) == (1, 6)
    labels = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".screen .panel i")]
    assert labels == ["depth 1 · 2.5 mm", "col 6 · 6 mm", f"row {row_shown} · {row_shown} mm"]
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".pin-maps figcaption span")] == [
        f"2 (1, {row_shown}, 6)"
    ]
    assert browser.get_log("browser") == []


EVERY_UNIT = """
const screen = document.querySelector('.screen');
const step = (key, shiftKey) => screen.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey }));
const next = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const [side, done] = arguments, found = [];
const read = (canvas) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data];
(async () => {
  for (let k = 0; k < side; k++) ['ArrowUp', 'ArrowLeft'].forEach((key) => step(key, false)), step('ArrowLeft', true);
  for (let depth = 0; depth < side; depth++) {
    for (let row = 0; row < side; row++) {
      for (let col = 0; col < side; col++) {
        await next();
        found.push([screen.dataset.unit, [...screen.querySelectorAll('.panel > canvas')].map(read)]);
        step('ArrowRight', false);
      }
      for (let k = 0; k < side; k++) step('ArrowLeft', false);
      step('ArrowDown', false);
    }
    for (let k = 0; k < side; k++) step('ArrowUp', false);
    step('ArrowRight', true);
  }
  done(found);
})();
"""


def test_every_plane_of_every_unit_glows_where_the_map_is(browser, tmp_path):  # noqa: F811
    """Units behind pooling stand at half cells, which two rules of rounding tell apart."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.AvgPool3d(2), nn.Conv3d(1, 2, 3, padding=1)).eval()
    options = {"input_size": (6, 6, 6), "in_chans": 1, "layer": "1", "draws": 1, "dtype": "float64"}
    given = torch.rand(1, 1, 6, 6, 6, dtype=torch.float64)
    found = erfscope.explore(module, given, grid=3, **options)
    found.save(tmp_path / "volume.html")
    start(browser, (tmp_path / "volume.html").as_uri())
    shown = dict(browser.execute_async_script(EVERY_UNIT, 3))
    assert len(shown) == 27
    palette = plot.colour_map(signed=False)(np.arange(256), bytes=True)[:, :3].astype(float)
    for unit in found.models[0].stages[0].units:
        assert {place % 1 for place in unit.center_px} == {0.5}
        ranks = levels(erfscope.analyze(module, images=given, unit=unit.index, **options).map.values)
        depth, row, col = map(round, unit.center_px)
        # A page knows the levels in three planes, and not those of the cells between them.
        planes = decoded(np.stack([ranks[depth], ranks[:, :, col].T, ranks[:, row]]))[1]
        for plane, pixels in zip(planes, shown[",".join(map(str, unit.index))], strict=True):
            assert plane.max() > 0.1
            colours = np.reshape(pixels, (*plane.shape, 4)).astype(float)
            expected = palette[np.floor(255 * plane + 0.5).astype(int)]
            colour = COVER * plane * (expected[..., 0] - expected[..., 2])
            np.testing.assert_allclose(colours[..., 0] - colours[..., 2], colour, atol=4)


@pytest.mark.parametrize(("side", "times"), [(24, "4 times"), (40, "8 times")])
def test_a_field_that_is_small_in_the_picture_is_enlarged_around_its_unit(browser, tmp_path, side, times):  # noqa: F811
    torch.manual_seed(0)
    module = nn.Conv2d(1, 2, 3, padding=1).eval()
    options = {"input_size": (side, side), "in_chans": 1, "layer": "output", "draws": 1}
    found = erfscope.explore(module, grid=5, **options)
    found.save(tmp_path / "small.html")
    start(browser, (tmp_path / "small.html").as_uri())
    point(browser, 0.9, 0.1)
    drawn(browser)
    inset, box = (
        browser.find_element(By.CSS_SELECTOR, ".screen .inset"),
        browser.find_element(By.CSS_SELECTOR, ".screen"),
    )
    assert inset.is_displayed()
    assert inset.get_attribute("data-zoom") == times
    # It lies in the corner farthest from the unit, and holds its field.
    assert (
        inset.rect["y"] - box.rect["y"] < box.rect["height"] / 2 < inset.rect["x"] - box.rect["x"] + inset.rect["width"]
    )
    first, top, wide, high = map(float, inset.find_element(By.TAG_NAME, "svg").get_dom_attribute("viewBox").split())
    field = inset.find_element(By.CSS_SELECTOR, ".field")
    place = [float(field.get_dom_attribute(name)) for name in ("x", "y", "width", "height")]
    assert first <= place[0] < place[0] + place[2] <= first + wide
    assert top <= place[1] < place[1] + place[3] <= top + high


PARTED = """
const range = document.createRange();
return [...document.querySelectorAll('.numbers tbody tr:not(:last-child) .num')].filter((cell) => {
  range.selectNodeContents(cell);
  return range.getClientRects().length > 1;
}).map((cell) => cell.textContent)"""


def test_pinned_volumes_are_small_without_insets_and_no_number_parts_from_its_unit(browser, tmp_path):  # noqa: F811
    module, options, _ = spatial("sequence")
    erfscope.explore(module, grid=9, **options).save(tmp_path / "sequence.html")
    start(browser, (tmp_path / "sequence.html").as_uri(), width=1200)
    drawn(browser)
    assert browser.execute_script(PARTED) == []
    torch.manual_seed(0)
    options = {"input_size": (32, 32, 32), "in_chans": 1, "axes": "dhw", "layer": "output", "draws": 1}
    found = erfscope.explore(nn.Conv3d(1, 2, 3, padding=1).eval(), grid=1, **options)
    found.save(tmp_path / "volume.html")
    start(browser, (tmp_path / "volume.html").as_uri())
    browser.find_element(By.ID, "pin").click()
    drawn(browser)
    shown = [
        [inset.is_displayed() for inset in browser.find_elements(By.CSS_SELECTOR, f"{place} .inset")]
        for place in (".screen", ".pin-maps")
    ]
    assert shown == [[True] * 3, [False] * 3]
