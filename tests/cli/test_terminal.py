"""What the terminal shows: the order of its lines, nothing cut, marks where they belong, and the same text at 80 and
200 columns.

Golden files are renewed by `pytest tests/cli/test_terminal.py --update-golden`; look at the difference before you
commit it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
from loaded import adapter_of
from rich.console import Console
from spared import opened_once  # noqa: F401
from torch import nn

import erfscope
from erfscope import Report
from erfscope.apps.gate.gate import CheckReport, compare_entries, entry_of
from erfscope.apps.gate.verdict import PYTHON
from erfscope.apps.lab.studies import STUDIES
from erfscope.core import LayerRow
from erfscope.core.answer.layers import LayerTable
from erfscope.core.values.model_facts import Weights
from erfscope.show.view.fit import text_width
from erfscope.show.view.report_view import report_view
from erfscope.show.view.terminal.heatmap import MOST, NARROWEST, Gallery, HeatMap
from erfscope.show.view.terminal.layers import layer_view
from erfscope.show.view.terminal.report import FIRST, ComparisonTable, draw_report, draw_result, next_step

pytestmark = pytest.mark.usefixtures("memory_unplanned", "opened_once")


@pytest.fixture(scope="module")
def single() -> Report:
    return erfscope.sweep(adapter_of("test_resnet"), samples=5)


@pytest.fixture(scope="module")
def several() -> Report:
    models = {"A": adapter_of("test_resnet"), "a model with quite a long name indeed": adapter_of("test_vit")}
    return erfscope.compare(models, samples=5)


def shown(renderable: object, width: int) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_lines_come_in_the_order_of_importance_and_no_number_is_cut(single, several, width):
    text = " ".join(" ".join(shown(draw_report(single), width)).split())
    parts = ("test_resnet · layer4 · unit", "Half of the ERF lies within", "radius that holds half", "+ unit · 5 ring")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    for view in (draw_report(single), draw_report(several)):
        assert "…" not in "\n".join(line for line in shown(view, width) if "quite a long" not in line)


def test_what_does_not_fit_stands_in_a_second_table_or_is_named_and_differences_below_their_rows(several):
    narrow, wide = (shown(ComparisonTable(report_view(several)), width) for width in (80, 200))
    heads = [[name for line in lines if line.startswith("model ") for name in line.split()] for lines in (narrow, wide)]
    assert [head.count("model") for head in heads] == [2, 1]
    for column in ("layer", "TRF", "center_share", "erf_trf", *FIRST):
        assert [head.count(column) for head in heads] == [1, 1], column
    assert any(line.startswith("no room for: ") and "GMACs" in line for line in narrow)
    assert not any("no room for" in line for line in wide)
    assert "GMACs" in heads[1]
    (row,) = [i for i, line in enumerate(wide) if "Δ vs first" in line]
    assert wide[row - 1].strip().startswith("a model with")
    r50 = several.differences(["r50"])[1]["r50"][0]
    assert r50 is not None
    assert ("+" if r50 > 0 else "-") in wide[row]


@pytest.mark.parametrize(
    ("width", "image", "beside"), [(200, True, True), (150, True, True), (120, False, True), (50, False, False)]
)
def test_image_map_and_numbers_stand_beside_each_other_where_there_is_room(width, image, beside):
    """On a white image a line of it is all @, which no line of the map is."""
    result = made_up.result(picture=np.full((224, 224, 3), 255, dtype=np.uint8))
    lines = shown(draw_result(result), width)
    side = min(width - 46, max(36, width // 3))
    assert any(line.startswith("@" * side + "  ") for line in lines) == image
    assert ("input image" in "\n".join(lines)) == image
    (numbers,) = [line for line in lines if "62.0 ± 0.6 px  28 %" in line]
    assert (numbers.index("r50") > side) == beside
    if beside:
        assert numbers.index("r50") - 2 >= (2 * side + 2 if image else side)
    assert all(len(line) <= width for line in lines)
    assert max(line.count("=") + line.count("-") for line in lines) > side / 2


def test_the_studies_are_listed_in_words_that_no_column_cuts(monkeypatch, command):
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = command("study", "--list")[1].splitlines()
        assert all(len(line) <= width for line in lines)
        words = " ".join(lines).split()
        for study in STUDIES.values():
            cells = f"{study.name} {study.shows} {study.source} {study.seconds}".split()
            assert [word for word in cells if word not in words] == []
        # At 80 columns two lines or three say what a study shows, not a dozen.
        assert len(lines) <= {60: 110, 80: 60, 120: 45}[width] * len(STUDIES) / 15


# --- Golden files ---------------------------------------------------------------------------------

VIEWS = {
    "one": lambda: made_up.report(made_up.result()),
    "inner": made_up.inner,
    "four": made_up.four,
    "stages": made_up.stages,
    "host_and_block": made_up.host_and_block,
    "fallback": made_up.fallback,
}


def layer_rows() -> LayerTable:
    small, large = made_up.field(43, stride=4), made_up.field(435)
    fields = {"layer1": small, "layer4": large, "attn": made_up.field(435, by="attn")}
    asked = {"shape": (64, 7, 7), "unit": (3, 3)}
    rows = [
        LayerRow(name=name, stage=name != "attn", trf=replace(trf, offset_px=(0.0, 0.0)), **asked)
        for name, trf in fields.items()
    ]
    return LayerTable(model="resnet18", input_size=(224, 224), default_layer="layer4", wrt="image", rows=tuple(rows))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", VIEWS)
def test_a_report_is_shown_as_it_was(golden, name, width):
    lines = shown(draw_report(VIEWS[name]()), width)
    assert max(len(line) for line in lines) <= width
    golden(f"{name}-{width}", "\n".join(line.rstrip() for line in lines) + "\n")


@pytest.mark.parametrize("width", [80, 200])
def test_layers_are_shown_as_they_were(golden, width):
    lines = shown(layer_view(layer_rows(), one=False, everything=True), width)
    golden(f"layers-{width}", "\n".join(line.rstrip() for line in lines) + "\n")


def test_verdicts_are_shown_as_they_were(golden):
    expected, trained = entry_of(made_up.result()), Weights(source="given", sha256="cd" * 32)
    narrower = made_up.result(sizes={"r50": (52.0, 0.5)}, trf=made_up.field(211), weights=trained)
    noisy = made_up.result(sizes={"r90": (99.0, 30.0)}, weights=trained)
    asked = {"fails": entry_of(narrower), "passes": expected, "is noise": entry_of(noisy)}
    asked["is another"] = entry_of(made_up.vit())
    advice = replace(PYTHON, accept="erfscope check --update")
    verdicts = [compare_entries(entry, expected, name=name, advice=advice) for name, entry in asked.items()]
    verdicts.append(compare_entries(expected, None, name="is new", advice=replace(advice, accept="")))
    assert [verdict.word for verdict in verdicts] == ["fail", "pass", "cannot tell", "cannot tell", "cannot tell"]
    golden("check", CheckReport(verdicts=tuple(verdicts), baseline=Path("erf-baseline.json")).text + "\n")


def test_measures_that_are_asked_for_stand_beside_the_map():
    measures = {name: made_up.measured(name, 5.0, 0.5) for name in ("r50", "gaussian_sigma_row")}
    lines = shown(draw_result(made_up.result(measures=measures)), 100)
    assert any("gaussian_sigma_row 5.0 ± 0.5 px" in line for line in lines)


@pytest.mark.parametrize("name", ["four", "stages", "host_and_block", "fallback"])
def test_the_four_sizes_stand_in_the_first_table_with_their_errors_at_80_columns(name):
    report = VIEWS[name]()
    lines = shown(ComparisonTable(report_view(report)), 80)
    head = next(line for line in lines if line.startswith("model "))
    assert set(FIRST) <= set(head.split())
    table = "\n".join(lines[lines.index(head) : lines.index("", lines.index(head))])
    assert table.count("±") == sum(
        4 * result.ok + 4 * bool(row) for result, row in zip(report, report.differences(), strict=True)
    )


# --- Maps side by side ----------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "across"), [(60, 3), (80, 3), (120, 6), (200, 6)])
def test_maps_stand_side_by_side_as_many_as_can_be_read(width, across):
    results = [made_up.result(f"m{place}") for place in range(6)]
    lines = shown(Gallery(results), width)
    labels = [re.findall(r"m\d", line) for line in lines if line.startswith("m")]
    assert [len(found) for found in labels] == [across] * (6 // across)
    assert [name for found in labels for name in found] == [f"m{place}" for place in range(6)]
    assert min(line.index("m", 1) for line in lines if line.startswith("m")) >= NARROWEST
    assert all(len(line) <= width for line in lines)


def test_maps_beyond_the_most_are_counted_and_failed_results_and_narrow_terminals_have_none():
    results = [made_up.result(f"m{place:02d}") for place in range(MOST + 3)]
    text = "\n".join(shown(Gallery([*results, made_up.broken()]), 120))
    assert f"m{MOST - 1:02d}" in text
    assert f"m{MOST:02d}" not in text
    assert "3 more maps: -o DIR" in " ".join(text.split())
    assert "broken" not in text
    assert shown(Gallery([made_up.result()]), 59) == shown(Gallery([made_up.broken()]), 80) == []


def test_the_swept_setting_stands_over_its_map_and_long_names_are_folded():
    results = [made_up.result("a name that is longer than its map", layer=f"layer{depth}") for depth in (1, 2, 3, 4)]
    lines = shown(Gallery(results), 80)
    heads = [i for i, line in enumerate(lines) if line.startswith("a name")]
    below = heads[0] + next(i for i, line in enumerate(lines[heads[0] :]) if "layer1" in line)
    assert " ".join(lines[heads[0] : below]).split().count("map") == 4
    assert lines[below].split() == ["layer1", "layer2", "layer3", "layer4"]


# --- Marks on a map -------------------------------------------------------------------------------


def test_the_unit_and_its_rings_are_where_the_map_says(single):
    heat = HeatMap(single[0], 36)
    erf = single[0].map
    assert erf is not None
    rows, columns = heat.shape
    ((row, col),) = np.argwhere(heat.marked("unit"))
    assert (row / rows * 160, col / columns * 160) == pytest.approx(erf.center_px, abs=160 / rows)
    ring = np.argwhere(heat.marked("r50"))
    radius = float(single[0]["r50"]) * rows / 160
    centre = [(c + 0.5) * rows / 160 for c in erf.center_px]
    distances = np.hypot(ring[:, 0] + 0.5 - centre[0], ring[:, 1] + 0.5 - centre[1])
    assert np.abs(distances - radius).max() <= 0.75
    assert heat.glyphs()[row // 2, col] == "+"


def test_a_wide_map_keeps_its_shape():
    heat = HeatMap(made_up.result(), 36)
    assert heat.shape[1] / heat.shape[0] == pytest.approx(1, rel=0.1)
    result = erfscope.analyze(nn.Conv2d(3, 4, 3, 4), samples=1, input_size=(64, 192), measures="r50")
    heat = HeatMap(result, 36)
    assert heat.shape[1] / heat.shape[0] == pytest.approx(3, rel=0.1)


def test_the_hint_keeps_the_options_of_the_command_and_ends_where_a_file_was_asked_for(tmp_path):
    one = made_up.report(made_up.result("one"))
    assert next_step(one, [str(tmp_path / "page.html")]) is None
    for report in (one, made_up.report(made_up.result("one"), made_up.result("two"))):
        hint = next_step(report, [])
        assert hint is not None
        assert hint.startswith("next: add ")
        assert "erfscope" not in hint
    assert f"compare {tmp_path} DIR2" in str(next_step(one, [str(tmp_path)]))
    failed = made_up.report(replace(one[0], status="error", error="no"))
    assert next_step(failed, []) is None


NARROW = """
layers test_vit --all
layers test_resnet --layer layer2 --unit corner
advise test_resnet --input-size 64 --all
advise test_resnet --input-size 64 --measure --weights random --samples 2
advise test_resnet --input-size 64 --weights random --target r50>=60 --samples 2 --time 1s
tile test_resnet --layer layer2 --image-size 4000x3000
analyze test_resnet --weights random --samples 4 --input-size 64,96
compare test_resnet test_vit --weights random --samples 4 --layer stages --input-size 96
check test_resnet --weights random --samples 4 --input-size 64 --allow-new
check test_resnet --weights random --samples 4 --input-size 64 --fail-on r50=5%,r90=-5%
study --list
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80])
def test_no_command_cuts_a_cell_where_the_terminal_is_narrow(command, monkeypatch, tmp_path, width):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in [*NARROW, *(f"study {name} --show" for name in STUDIES)]:
        code, out, err = command(*arguments.split())
        assert code in (0, 1), err
        assert "…" not in out, arguments
        # Commands that are copied stand on one line.
        lines = [line for line in out.splitlines() if "erfscope " not in line]
        assert max(map(text_width, lines)) <= width, arguments
