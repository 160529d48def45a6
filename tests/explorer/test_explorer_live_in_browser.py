"""The live page in a browser: it shows the unit that is pointed at, as it is measured alone, and pictures that are
dropped on it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from test_explorer import OPTIONS, SIZE, net, picture  # noqa: F401
from test_explorer_in_browser import choose, numbers, point, start, unit_shown
from test_explorer_served import Served, png, served, serving, slow, wait_for  # noqa: F401
from test_page_in_browser import browser, overflow, requests  # noqa: F401

import erfscope
from erfscope.apps.explore.live import Overtaken
from erfscope.core import Request, open_images, open_model, projective_fields

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]

DROP = """
const [content, name] = arguments, held = new DataTransfer();
held.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name));
document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
"""

#: Without the mouse, which would lie over a stage of the next page.
CHOOSE = """
const [name, word] = arguments, select = document.querySelector(`select[name=${name}]`);
select.value = word;
select.dispatchEvent(new Event("change", { bubbles: true }));
"""


def opened(browser: Chrome, served: Served, query: str = "", **given: object) -> None:  # noqa: F811
    start(browser, f"http://{served.host}{served.path}{query}", **given)


@contextlib.contextmanager
def reloaded(browser: Chrome) -> Iterator[None]:  # noqa: F811
    """Wait for the page that comes after this one."""
    page = browser.find_element(By.TAG_NAME, "html")
    yield
    WebDriverWait(browser, 20).until(lambda b: b.find_element(By.TAG_NAME, "html") != page)
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.body.dataset.ready === ''"))


def assert_shows(browser: Chrome, alone: erfscope.Result) -> None:  # noqa: F811
    WebDriverWait(browser, 20).until(lambda b: unit_shown(b) == alone.unit.index and numbers(b)["r50"] != ["–"])
    shown = numbers(browser)
    for name in ("r50", "r90", "center_share"):
        assert float(shown[name][0]) == pytest.approx(alone.measures[name].value, abs=1e-9)


def test_the_unit_below_the_pointer_is_the_one_that_is_measured_alone(browser, served, picture):  # noqa: F811
    opened(browser, served)
    choose(browser, 1)
    for row, col in ((0.1, 0.9), (0.7, 0.4)):
        point(browser, row, col)
        index = (int(row * SIZE[0] / 4), int(col * SIZE[1] / 4))
        assert_shows(browser, erfscope.analyze(net(), images=picture, unit=index, **{**OPTIONS, "layer": "far"}))
    # Then the other stages, one by one, at the same place.
    script = "return [...document.querySelectorAll('.stages small')].map((each) => each.textContent)"
    WebDriverWait(browser, 20).until(lambda b: all(text.startswith("r50 ") for text in b.execute_script(script)))
    assert browser.get_log("browser") == []
    assert {address.partition("?")[0] for address in requests(browser)} == {
        f"http://{served.host}{served.path}{name}" for name in ("", "unit")
    }


def test_a_convention_a_layer_and_a_reference_are_chosen_on_the_page(browser, served, picture):  # noqa: F811
    opened(browser, served)
    for name, word in (("convention", "luo"), ("layer", "far.0"), ("wrt", "near")):
        with reloaded(browser):
            browser.execute_script(CHOOSE, name, word)
    point(browser, 0.3, 0.3)
    chosen = {"layer": "far.0", "convention": "luo", "wrt": "near"}
    assert_shows(browser, erfscope.analyze(net(), images=picture, unit=(1, 2), **{**OPTIONS, **chosen}))
    assert "cells" in browser.find_element(By.CSS_SELECTOR, ".sentence").text


def test_choices_keep_their_focus_and_a_refused_reference_the_layer_and_the_convention(browser, served):  # noqa: F811
    opened(browser, served)
    for name, word in (("convention", "luo"), ("layer", "far.0")):
        select = browser.find_element(By.NAME, name)
        with reloaded(browser):
            select.send_keys(word)
        chosen = browser.switch_to.active_element
        assert (chosen.get_attribute("name"), chosen.get_attribute("value")) == (name, word)
    opened(browser, served)
    assert browser.switch_to.active_element.tag_name == "body"
    opened(browser, served)
    for name, word in (("convention", "luo"), ("layer", "near"), ("wrt", "far")):
        with reloaded(browser):
            browser.execute_script(CHOOSE, name, word)
    trouble = browser.find_element(By.ID, "trouble")
    assert trouble.is_displayed()
    assert "far" in trouble.text
    values = "return [...document.querySelectorAll('.choices select')].map((each) => [each.name, each.value])"
    assert dict(browser.execute_script(values)) == {"convention": "luo", "layer": "near", "wrt": "image"}


@pytest.mark.parametrize("width", [1400, 390])
def test_a_dropped_picture_is_the_one_that_is_measured(browser, served, tmp_path, width):  # noqa: F811
    pixels = np.random.default_rng(width).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    (tmp_path / "own.png").write_bytes(png(pixels))
    opened(browser, served, width=width, scheme="dark")
    with reloaded(browser):
        browser.execute_script(DROP, base64.b64encode(png(pixels)).decode(), "own.png")
    assert "own.png" in browser.find_element(By.CSS_SELECTOR, ".conditions").text
    choose(browser, 1)
    point(browser, 0.55, 0.55)
    asked = {**OPTIONS, "images": tmp_path / "own.png", "layer": "far"}
    assert_shows(browser, erfscope.analyze(net(), unit=(3, 4), **asked))
    assert overflow(browser) == 0
    assert browser.get_log("browser") == []


def test_pixels_show_the_units_that_they_move_and_what_is_no_image_is_refused(browser, served, picture):  # noqa: F811
    opened(browser, served)
    choose(browser, 1)
    browser.find_element(By.CSS_SELECTOR, "label:has(input[value=seen])").click()
    point(browser, 0.4, 0.3)
    sentence = browser.find_element(By.CSS_SELECTOR, ".sentence")
    WebDriverWait(browser, 20).until(lambda _: "influences unit" in sentence.text)
    row, col = int(0.4 * SIZE[0]), int(0.3 * SIZE[1])
    request = Request.parse({**OPTIONS, "images": picture, "samples": 1})
    with open_model(net(), request) as model:
        given = open_images(request, model).batch([0])
        (values,) = projective_fields(model, given, ((row, row + 1), (col, col + 1)), ["far"]).values()
    strongest = np.unravel_index(values.argmax(), values.shape)
    shown = numbers(browser)
    assert shown["strongest unit"] == [f"({strongest[0]}, {strongest[1]})"]
    assert float(shown["its share"][0]) == pytest.approx(values.max() / values.sum(), rel=1e-5)
    assert shown["any"] == [f"{np.count_nonzero(values)}"]
    opened(browser, served)
    browser.execute_script(DROP, base64.b64encode(b"nothing").decode(), "<b>own</b>.png")
    trouble = browser.find_element(By.ID, "trouble")
    WebDriverWait(browser, 20).until(lambda _: trouble.is_displayed())
    assert trouble.text.startswith("cannot read '<b>own</b>.png'")


def test_a_long_answer_shows_that_it_runs_and_ends_when_the_pointer_moves_on(browser, slow):  # noqa: F811
    opened(browser, slow)
    busy = browser.find_element(By.CSS_SELECTOR, ".busy")
    WebDriverWait(browser, 20).until(lambda _: busy.is_displayed() and "unit (" in busy.text)
    begun = len(slow.begun)
    point(browser, 0.1, 0.9)
    wait_for(lambda: len(slow.begun) > begun)
    browser.get("about:blank")
    wait_for(lambda: len(slow.raised) == slow.begun.count("unit") > 1)
    assert {*slow.raised} == {Overtaken}
