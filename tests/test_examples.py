"""The examples run as they are, and what they say of their numbers holds."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = ("first_steps", "your_own_model", "comparing_architectures")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def stored(name: str) -> Any:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def bare(notebook: Any) -> Any:
    """A notebook without what a machine leaves in it, and with small images."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "text/html" in shown:
                shown.pop("image/png", None)
            if "image/png" in shown:
                small = io.BytesIO()
                drawn = Image.open(io.BytesIO(base64.b64decode(shown["image/png"]))).convert("RGB")
                drawn.quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
                shown["image/png"] = base64.b64encode(small.getvalue()).decode()
    return notebook


def texts(cell: Any) -> list[str]:
    """What a cell prints, and its value as text."""
    outputs = cell.get("outputs", [])
    return [
        output.text if "text" in output else output.data["text/plain"]
        for output in outputs
        if output.output_type != "error"
    ]


@pytest.fixture(scope="module", params=NOTEBOOKS)
def run_anew(request):
    """A notebook as it is stored, and as it is after its cells have run; --update-golden stores that."""
    name = request.param
    notebook = stored(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(EXAMPLES)}}
    # What a cell prints may arrive in several parts, as its kernel flushes.
    NotebookClient(notebook, timeout=120, record_timing=False, coalesce_streams=True, resources=resources).execute()
    if request.config.getoption("--update-golden"):
        nbformat.write(bare(notebook), EXAMPLES / f"{name}.ipynb")
    return stored(name), notebook


@pytest.mark.more
def test_a_notebook_shows_what_its_cells_give(run_anew):
    """The words exactly, numbers to two per cent: other versions of the libraries may round in another way."""
    was, now = run_anew
    assert [NUMBER.sub("#", text) for cell in was.cells for text in texts(cell)] == [
        NUMBER.sub("#", text) for cell in now.cells for text in texts(cell)
    ]
    numbers = [
        [float(n) for cell in notebook.cells for text in texts(cell) for n in NUMBER.findall(text)]
        for notebook in run_anew
    ]
    assert len(numbers[0]) > 20
    assert numbers[1] == pytest.approx(numbers[0], rel=0.02, abs=0.11)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_its_outputs_and_nothing_of_a_machine(name):
    notebook = stored(name)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all(not cell.metadata for cell in notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} <= {"stdout"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    text = re.sub(r'"image/png": "[^"]*"|base64,[\w+/=]*', "", (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert not re.search(r"/(root|home|tmp|usr|Users)\b|[A-Z]:\\\\", text)
    assert len(text) < 100_000
