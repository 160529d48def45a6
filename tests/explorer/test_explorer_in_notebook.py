"""The explorer in a notebook: the cell's value is a widget, whose frame shows the page in the notebook's colours."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from test_explorer import LAYERS, explorer, picture  # noqa: F401
from test_explorer_in_browser import point, unit_shown
from test_page_in_browser import browser, opened  # noqa: F401

from erfscope.apps import explore
from erfscope.apps.explore import exploration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]

CELL = """
import numpy, erfscope

picture = numpy.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype="uint8")
erfscope.explore("test_resnet", picture, weights="random", input_size=48, grid=2, draws=1)
"""
#: What stands for the notebook: it runs the widget's module with the widget's state.
NOTEBOOK = """<!doctype html><link rel="icon" href="data:,">
<body style="color: #eee; background: #111"><div id="cell"></div>
<script type="application/json" id="state">{state}</script>
<script type="module">
const state = JSON.parse(document.getElementById("state").textContent);
const widget = await import(URL.createObjectURL(new Blob([state._esm], {{ type: "text/javascript" }})));
widget.default.render({{ model: {{ get: (name) => state[name] }}, el: document.getElementById("cell") }});
</script>"""


@pytest.fixture(scope="module")
def output() -> tuple[Any, dict[str, Any]]:
    """What the cell shows, and the state of its widget."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=120).execute()
    (shown,) = notebook.cells[0].outputs
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    return shown, states[shown.data["application/vnd.jupyter.widget-view+json"]["model_id"]]["state"]


def test_a_cell_shows_the_page_in_the_colours_of_the_notebook(browser, output, tmp_path):  # noqa: F811
    shown, state = output
    assert shown.data["text/plain"].startswith("Explorer of test_resnet (5 layers): save(")
    text = json.dumps(state).replace("<", "\\u003c")
    (tmp_path / "notebook.html").write_text(NOTEBOOK.format(state=text), encoding="utf-8")
    # The notebook's scheme, and not the system's, is that of the page.
    opened(browser, (tmp_path / "notebook.html").as_uri(), scheme="light")
    frame = WebDriverWait(browser, 20).until(lambda b: b.find_element(By.TAG_NAME, "iframe"))
    browser.switch_to.frame(frame)
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.body.dataset.ready === ''"))
    point(browser, 0.99, 0.01)
    row, col = unit_shown(browser)
    assert row > col
    # All of the page is there without a bar.
    WebDriverWait(browser, 5).until(
        lambda b: b.execute_script("return document.documentElement.scrollHeight <= window.innerHeight")
    )
    assert ground(browser) < 60
    browser.switch_to.default_content()
    browser.execute_script("Object.assign(document.body.style, { color: '#222', background: '#fff' })")
    browser.switch_to.frame(frame)
    WebDriverWait(browser, 5).until(lambda b: ground(b) > 200)
    browser.switch_to.default_content()
    assert browser.get_log("browser") == []


def ground(browser: Chrome) -> int:  # noqa: F811
    """How bright the page is below its text."""
    return browser.execute_script("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")


def test_pages_and_cells_are_written_without_anywidget(explorer, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "erfscope.apps.explore.widget", raising=False)
    assert explorer._repr_mimebundle_() == {"text/plain": explorer._display_()}
    assert explorer._display_().endswith("notebooks show it after pip install '.[explore]' in a checkout of erfscope")
    assert f"({len(LAYERS)} layers)" in explorer._display_()
    # Regression: the page's own module imported it.
    monkeypatch.delitem(sys.modules, exploration.__name__)
    monkeypatch.setattr(explore, "exploration", exploration)
    assert importlib.import_module(exploration.__name__) is not exploration
