"""The HTML page in a browser: it renders in silence, sorts, switches scales, fits a telephone and prints."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import made_up
import numpy as np
import pytest
from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_page import failed

import erfscope
from erfscope import ErfMap, Report
from erfscope.core import Finding
from erfscope.show.figures.style import SCALES
from erfscope.show.page import html

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("memory_unplanned")]

#: Explicit places: selenium would download a browser that it does not find.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900")
HOSTILE = "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}\u202eevil\x1b[31m"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        reason = (
            f"no browser: {'chromedriver' if program else ' or '.join(BROWSERS)} is not installed (Debian: chromium,"
            " chromium-driver)"
        )
        if os.environ.get("ERFSCOPE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    options = ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def report() -> Report:
    """Three models, one of which has no theoretical ratio, and one that failed."""
    options = {"weights": "random", "samples": 4, "input_size": 64}
    compared = erfscope.compare({"Res": "test_resnet", "ViT": "test_vit", "Conv": "test_convnext"}, **options)
    broken = dataclasses.replace(failed(compared[0], "its weights hold NaN"), id="broken", label="Broken")
    return dataclasses.replace(compared, results=(compared[0], broken, *compared.results[1:]))


@pytest.fixture(scope="module")
def address(report, tmp_path_factory) -> str:
    return written(report, tmp_path_factory.mktemp("page"))


def written(report: Report, folder: Path) -> str:
    target = folder / "erf.html"
    target.write_text(html(report), encoding="utf-8")
    return target.as_uri()


def opened(browser: Chrome, address: str, *, width: int = 1400, scheme: str = "light") -> None:
    """Load the page anew, and forget what the browser said of others."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.get(address)


def unfold(browser: Chrome) -> None:
    """Open the details of every result."""
    browser.execute_script("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")


def unfolded(browser: Chrome) -> list[int]:
    """Numbers of the results whose details are open."""
    folds = browser.find_elements(By.CSS_SELECTOR, "details.fold")
    return [index for index, fold in enumerate(folds) if fold.get_attribute("open")]


def requests(browser: Chrome) -> set[str]:
    """Addresses that the page asked for, those that hold their own content apart."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return {url for url in asked if not url.startswith("data:")}


def labels(browser: Chrome) -> list[str]:
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, "table.results tbody th a")]


def column(browser: Chrome, name: str):
    return next(
        h for h in browser.find_elements(By.CSS_SELECTOR, "table.results thead th") if h.text.split()[0] == name
    )


def seen(browser: Chrome) -> list[str]:
    """Classes of the maps that can be seen, one text per map."""
    shown = "(i) => { const s = getComputedStyle(i); return s.display !== 'none' && s.visibility === 'visible'; }"
    visible = f"[...document.querySelectorAll('image.r')].filter({shown})"
    return browser.execute_script(f"return {visible}.map(i => i.getAttribute('class'))")


def overflow(browser: Chrome) -> int:
    """Pixels by which the page is wider than its window."""
    return browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


def captions(browser: Chrome) -> list[str]:
    return [each.text for each in browser.find_elements(By.CSS_SELECTOR, "figcaption:has(.colours)")]


def test_the_page_renders_in_silence_and_details_are_folded_until_they_are_asked_for(browser, address):
    opened(browser, address)
    assert browser.get_log("browser") == []
    assert requests(browser) == {address}
    assert labels(browser) == ["Res", "Broken", "ViT", "Conv"]
    unfold(browser)
    broken = [
        i for i in browser.find_elements(By.CSS_SELECTOR, "svg.map") if i.size["width"] < 100 or i.size["height"] < 100
    ]
    assert broken == []
    opened(browser, address)
    assert unfolded(browser) == []
    browser.find_element(By.CSS_SELECTOR, '.multiple[href="#result-2"]').click()
    # The browser tells the page of a new fragment some time after the click.
    WebDriverWait(browser, 20).until(unfolded)
    assert unfolded(browser) == [2]
    opened(browser, "about:blank")
    opened(browser, f"{address}#result-3")
    assert unfolded(browser) == [3]


def test_names_run_nothing_and_the_script_is_the_one_that_the_policy_names(browser, report, tmp_path):
    first = report[0]
    weights = dataclasses.replace(first.weights, fallback=True, reason=HOSTILE)
    bad = dataclasses.replace(
        first, label=HOSTILE, layer=HOSTILE, weights=weights, findings=(Finding(code="x", text=HOSTILE),), wrt=HOSTILE
    )
    worse = dataclasses.replace(report[1], label=HOSTILE, error=HOSTILE, model=HOSTILE)
    page = written(Report(results=(bad, worse, report[2]), settings={HOSTILE: HOSTILE}), tmp_path)
    opened(browser, page)
    # An alert would make every further command fail.
    assert browser.execute_script("return document.scripts.length") == 1
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert browser.get_log("browser") == []
    assert requests(browser) == {page}
    assert "<script>alert(1)</script>" in browser.find_element(By.TAG_NAME, "h3").text
    column(browser, "model").find_element(By.TAG_NAME, "button").click()
    assert overflow(browser) == 0
    changed = html(report).replace('"use strict";', '"use strict"; document.title = "changed";')
    (tmp_path / "erf.html").write_text(changed, encoding="utf-8")
    opened(browser, (tmp_path / "erf.html").as_uri())
    assert browser.title != "changed"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


@pytest.mark.parametrize("name", ["r50", "erf_trf", "params"])
def test_columns_sort_by_number_both_ways_with_what_is_missing_last(browser, address, report, name):
    def value(result):
        if name == "params":
            return None if result.cost is None else result.cost.parameters
        return result.measures[name].value if result.measures else None

    values = {result.label: value(result) for result in report}
    there = sorted((label for label in values if values[label] is not None), key=values.__getitem__)
    missing = [label for label in values if values[label] is None]
    assert missing
    assert len(there) >= 2
    opened(browser, address)
    button = column(browser, name).find_element(By.TAG_NAME, "button")
    button.click()
    assert labels(browser) == [*there, *missing]
    assert column(browser, name).get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert labels(browser) == [*reversed(there), *missing]
    assert column(browser, name).get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.SPACE)
    assert labels(browser) == [result.label for result in report]
    assert column(browser, name).get_attribute("aria-sort") == "none"


def test_names_sort_as_words_and_the_scale_in_force_is_the_one_that_is_shown_and_said(browser, address):
    opened(browser, address)
    column(browser, "r50").find_element(By.TAG_NAME, "button").click()
    column(browser, "model").find_element(By.TAG_NAME, "button").click()
    assert labels(browser) == ["Broken", "Conv", "Res", "ViT"]
    heads = browser.find_elements(By.CSS_SELECTOR, "table.results thead th")
    assert [head.get_attribute("aria-sort") for head in heads].count("none") == len(heads) - 1
    opened(browser, address)
    unfold(browser)
    assert seen(browser) == ["s s-share r r-own r-shared"] * 3
    assert all(text.endswith("share scale") for text in captions(browser))
    browser.find_element(By.ID, "scale-share").send_keys(Keys.ARROW_RIGHT)
    assert seen(browser) == ["s s-linear r r-shared"] * 3
    assert all(text.endswith("linear scale, one range for all") for text in captions(browser))
    browser.find_element(By.CSS_SELECTOR, "label:has(#scale-log)").click()
    assert seen(browser) == ["s s-log r r-shared"] * 3
    assert all(text.endswith("log scale, one range for all") for text in captions(browser))
    browser.find_element(By.ID, "scale-log").send_keys(Keys.ARROW_RIGHT)
    assert seen(browser) == ["s s-power r r-shared"] * 3
    assert all(text.endswith("power scale, one range for all") for text in captions(browser))
    assert len({text.split()[1] for text in captions(browser)}) == 1
    browser.find_element(By.CSS_SELECTOR, "label:has(#span-own)").click()
    assert seen(browser) == ["s s-power r r-own"] * 3
    assert all(text.endswith("power scale") for text in captions(browser))


def test_maps_side_by_side_are_those_of_the_cards_on_every_scale(browser, address):
    opened(browser, address)
    unfold(browser)
    # Else it lies over what is looked at.
    browser.execute_script("document.querySelector('.controls').style.position = 'static'")
    drawn = {}
    for scale in SCALES:
        browser.find_element(By.CSS_SELECTOR, f"label:has(#scale-{scale})").click()
        for index in (0, 2, 3):
            small = browser.find_element(By.CSS_SELECTOR, f'.multiple[href="#result-{index}"] svg')
            large = browser.find_element(By.CSS_SELECTOR, f"#result-{index} svg.map")
            drawn[scale, index] = pixels(small), pixels(large)
    for (scale, index), (small, _) in drawn.items():
        # Lines and letters are as large on small maps as on large ones, so that the two are alike, not equal.
        distances = {other: np.abs(small - drawn[other, index][1]).mean() for other in SCALES}
        assert min(distances, key=distances.__getitem__) == scale, distances


def pixels(element) -> np.ndarray:
    """What is seen of an element, averaged over 12 x 12 cells."""
    seen = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB").resize((12, 12), Image.Resampling.BOX)
    return np.asarray(seen, dtype=float)


def test_a_narrow_window_scrolls_the_table_and_not_the_page(browser, address):
    opened(browser, address, width=390)
    assert overflow(browser) == 0
    box = browser.find_element(By.CSS_SELECTOR, ".scroll")
    width, inside = (
        browser.execute_script(f"return arguments[0].{name}", box) for name in ("clientWidth", "scrollWidth")
    )
    assert inside > width
    first = browser.find_element(By.CSS_SELECTOR, "table.results tbody th")
    left = "return arguments[0].getBoundingClientRect().left"
    before = browser.execute_script(left, first)
    browser.execute_script("arguments[0].scrollLeft = 200", box)
    assert browser.execute_script(left, first) == before
    for summary in browser.find_elements(By.TAG_NAME, "summary"):
        summary.click()
    assert overflow(browser) == 0


@pytest.mark.parametrize("width", [390, 1400])
def test_the_radii_at_a_glance_stand_below_their_heads(browser, address, width):
    opened(browser, address, width=width)
    for place in (1, 2):
        found = browser.find_elements(By.CSS_SELECTOR, f".range-text > span:nth-child({place})")
        edges = [browser.execute_script("return arguments[0].getBoundingClientRect().right", each) for each in found]
        assert len(edges) == 4
        assert max(edges) - min(edges) < 1, edges


def test_the_whole_table_is_seen_in_a_usual_window_and_numbers_of_a_steep_density_are_not_cut(
    browser, tmp_path, report
):
    for number, shown in enumerate((made_up.four(), made_up.stages())):
        folder = tmp_path / str(number)
        folder.mkdir()
        opened(browser, written(shown, folder))
        box = browser.find_element(By.CSS_SELECTOR, ".scroll")
        width, inside = (
            browser.execute_script(f"return arguments[0].{name}", box) for name in ("clientWidth", "scrollWidth")
        )
        assert inside <= width
        assert column(browser, "GMACs").is_displayed()
    rows, cols = np.indices((41, 41)) - 20.0
    values = np.where(np.hypot(rows, cols) < 15, 1.0, 1e-4)
    erf = ErfMap(values=values / values.sum(), center_px=(20.0, 20.0), stride_px=(1.0, 1.0))
    opened(browser, written(Report(results=(dataclasses.replace(report[0], map=erf),)), tmp_path))
    script = "return [...document.querySelectorAll('.profile .tick')].map(t => t.getBBox().x)"
    assert min(browser.execute_script(script)) >= 0


def test_dark_and_light_have_contrast(browser, address):
    def colours() -> tuple[float, float]:
        script = (
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map(c =>"
            " c.match(/[\\d.]+/g).map(Number))"
        )
        ink, paper = browser.execute_script(script)
        return luminance(ink), luminance(paper)

    for scheme in ("light", "dark"):
        opened(browser, address, scheme=scheme)
        ink, paper = colours()
        assert (paper > ink) is (scheme == "light")
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 7
        assert browser.get_log("browser") == []


def luminance(rgb: list[float]) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_prints(browser, address):
    opened(browser, address)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert pdf.startswith(b"%PDF-")
    # The head with the table, and four cards, which follow one another without gaps.
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 6
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for whole, broken in ((".panels", "avoid"), (".card", "auto")):
            found = browser.find_element(By.CSS_SELECTOR, whole)
            assert browser.execute_script("return getComputedStyle(arguments[0]).breakInside", found) == broken
        for name in ("stride", "TRF", "params", "GMACs"):
            assert column(browser, name).is_displayed()
        assert not browser.find_element(By.CSS_SELECTOR, "fieldset").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_notebook_keeps_its_own_looks_beside_a_fragment(browser, report, tmp_path):
    (tmp_path / "notebook.html").write_text(
        "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><body><p id=mine>mine</p>"
        + report._repr_html_()
        + report[0]._repr_html_(),
        encoding="utf-8",
    )
    opened(browser, (tmp_path / "notebook.html").as_uri())
    assert browser.get_log("browser") == []
    fonts = browser.execute_script("return getComputedStyle(document.getElementById('mine')).fontFamily")
    assert "system-ui" not in fonts
    maps = browser.find_elements(By.CSS_SELECTOR, "svg.erfscope-map")
    assert [svg.size["width"] for svg in maps] == [64, 64, 64, 240]
