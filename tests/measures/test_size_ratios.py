"""Every percentage beside a size is two printed numbers divided, on the terminal and on the page."""

from __future__ import annotations

import dataclasses
import math
import re

import made_up
import pytest
from rich.console import Console
from test_page import Page

import erfscope
from erfscope.core import Finding
from erfscope.show.page import html

pytestmark = pytest.mark.usefixtures("memory_unplanned")

#: A wide and a flat picture, a square one, a field that does not fit, and an inner map.
CASES = {
    "square": {"input_size": 64},
    "rectangle": {"input_size": (48, 96)},
    "inner": {"input_size": 96, "wrt": "layer1"},
}


@pytest.fixture(scope="module", params=list(CASES))
def result(request) -> erfscope.Result:
    asked = {"weights": "random", "samples": 4, "layer": "layer3", "measures": "all"}
    return erfscope.analyze("test_resnet", **asked, **CASES[request.param])


def shown(result: erfscope.Result) -> str:
    console = Console(width=110, color_system=None)
    with console.capture() as capture:
        console.print(result)
    return capture.get()


def in_words(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


def half(text: str) -> float:
    """Half of the last digit of a printed number."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def assert_divided(percent: str, value: str, side: str) -> None:
    """The percentage is the quotient, as far as the three printed numbers are exact."""
    size, whole = float(value), float(side)
    low, high = (size - half(value)) / (whole + half(side)), (size + half(value)) / (whole - half(side))
    assert 100 * low - half(percent) - 1e-9 <= float(percent) <= 100 * high + half(percent) + 1e-9, (
        percent,
        value,
        side,
    )


@pytest.mark.slow
def test_percentages_of_the_terminal_are_the_size_over_the_side(result):
    text = shown(result)
    space = result.trf.reference_px
    side = str(space[0]) if space[0] == space[1] else re.search(r"side ([\d.]+), the root of", in_words(text))[1]
    assert float(side) == pytest.approx(math.sqrt(math.prod(space)), rel=1e-3)
    rows = re.findall(r"(?:r50|r90) +([\d.]+)(?: ± [\d.]+)? (?:px|cells) +(\d+) % of side", text)
    assert len(rows) >= 3
    for value, percent in rows:
        assert_divided(percent, value, side)


@pytest.mark.slow
def test_percentages_of_the_page_are_the_size_over_the_sides_named_below_them(result):
    page = Page(html(erfscope.Report(results=(result,))))
    (note,) = [
        text for _, text in page.all("p", class_="note") if text.startswith(("Of the input", "Of the reference"))
    ]
    sides = re.findall(r"(?:its side|whole TRF), ([\d.]+) (?:px|cells)", note)
    texts = {pointer: text for pointer, _, text in page.numbers}
    found = 0
    for name, measure in result.measures.items():
        where = f"/results/0/measures/{name}"
        for field, side in zip(("of_input", "of_trf"), sides, strict=False):
            if measure.kind in ("radius", "width", "sigma") and measure.value is not None:
                found += 1
                assert_divided(texts[f"{where}/{field}"].removesuffix(" %"), texts[f"{where}/value"], side)
            elif measure.kind != "area":
                assert texts[f"{where}/{field}"] == "–"
    assert found >= 12
    assert float(sides[0]) == pytest.approx(math.sqrt(math.prod(result.trf.reference_px)), rel=1e-3)
    if not result.trf.is_global:
        # Not the part of it that fits into the input.
        assert float(sides[1]) == pytest.approx(math.sqrt(math.prod(result.trf.size_px)), rel=1e-3)


@pytest.mark.slow
def test_a_field_larger_than_the_input_counts_whole():
    """Oracle: receptive-field arithmetic of three 9 x 9 convolutions, 25 on an input of 16."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 9, padding=4) for _ in range(3)))
    result = erfscope.analyze(net, input_size=16, samples=4)
    assert result["r50"].of_trf == pytest.approx(result["r50"].value / 25)
    assert result["r50"].of_input == pytest.approx(result["r50"].value / 16)
    assert result["entropy_area"].of_trf == pytest.approx(result["entropy_area"].value / 625)
    assert max(m.of_input for m in result.measures.values() if m.kind == "radius") < 0.75, (
        "no radius reaches beyond the corners"
    )


def lede(report: erfscope.Report) -> str:
    return Page(html(report)).all("p", class_="lede")[0][1]


def unclipped(label: str, r50: float, **changes) -> erfscope.Result:
    sizes = {"r50": (r50, 0.6), "center_share": (0.1, 0.001)} | changes.pop("sizes", {})
    return made_up.result(label, sizes=sizes, trf=made_up.field(63), **changes)


def test_a_headline_ranks_models_only_where_r50_is_for_that():
    ranked = lede(made_up.report(unclipped("narrow", 20.0), unclipped("wide", 40.0)))
    assert "narrow, the most concentrated here, and within" in ranked
    assert ranked.endswith("for wide, the widest.")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            lambda: unclipped("wide", 40.0, sizes={"center_share": (0.45, 0.01)}),
            "the unit’s own cell holds over 30% of wide and sets r50",
        ),
        (
            lambda: dataclasses.replace(unclipped("wide", 40.0), findings=(Finding(code="clipped", text="too small"),)),
            "the input cuts off the ERF of wide",
        ),
        (lambda: unclipped("wide", 40.0, convention="energy"), "they differ in convention (jacobian against energy)"),
        (lambda: unclipped("wide", 21.0), "their difference is within twice its standard error"),
    ],
)
def test_a_headline_ranks_nothing_by_a_measure_that_is_not_for_it(other, reason):
    text = lede(made_up.report(unclipped("narrow", 20.0), other()))
    assert "concentrated" not in text
    assert "widest" not in text
    assert "These radii do not rank the models: " in text
    assert reason in text
    assert "narrow" in text, "the numbers themselves stand"
