"""What may stand in one table: the same pixels, units and kind of weights; what may not is refused by name; differences
are paired."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
import torch
from loaded import adapter_of
from one_line import one_line
from PIL import Image
from rich.console import Console
from scipy import stats
from torch import nn

import erfscope
from erfscope import MeasurementError, Report, Result
from erfscope.core.answer.comparability import paired, swept
from erfscope.core.answer.measures import SHOWN
from erfscope.core.values.model_facts import Weights
from erfscope.show.view.report_view import report_view
from erfscope.show.view.terminal.report import ComparisonTable

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

#: Resized bilinearly; both others bicubically, with another mean in the second of them.
BILINEAR, BICUBIC, OTHER_MEAN = "test_resnet", "test_vit", "test_byobnet"
OPTIONS = {"weights": "random", "measures": "r50"}
DRAWN = {**OPTIONS, "samples": 2, "input_size": 64}
AS_THEY_ARE = {"samples": None, "input_size": None}


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)).save(path)
    return path


def stored(folder: Path, model: object, **options: object) -> Path:
    """A measurement on disk."""
    path = folder / f"run{len(list(folder.iterdir()))}"
    weights = "random" if isinstance(model, str) else "auto"
    erfscope.sweep(model, **{**DRAWN, "weights": weights, **options}).save(path)
    return path


def conv(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 8, 3, 2, 1))


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("one", "two"), ("net (one)", "net (two)")),
        (("one/out", "two/out"), ("net (one/out)", "net (two/out)")),
        (("one", "one"), ("net (one)", "net (one #2)")),
    ],
)
def test_stored_runs_of_one_name_are_told_apart_by_their_folders(folders, names, tmp_path):
    for folder in set(folders):
        (tmp_path / folder).parent.mkdir(exist_ok=True)
        made_up.report(made_up.result("net")).save(tmp_path / folder)
    report = erfscope.compare([tmp_path / folder for folder in folders])
    assert tuple(result.label for result in report) == names
    assert all(name in report.table() for name in names)
    other = erfscope.compare([tmp_path / folders[0], made_up.report(made_up.result("other"))])
    assert [result.label for result in other] == ["net", "other"]
    # What is no path has no folder.
    both = erfscope.compare([made_up.report(made_up.result("net")), tmp_path / folders[0], made_up.result("net")])
    assert [result.label for result in both] == ["net", f"net ({Path(folders[0]).name})", "net"]


# --- The same pixels ------------------------------------------------------------------------------


def refused(words, models, **options):
    one_line(lambda: erfscope.compare(models, **options), words, MeasurementError)


@pytest.mark.slow
def test_stored_results_of_another_resize_are_refused_by_name_and_those_of_another_mean_compared(picture, tmp_path):
    names, options = (BILINEAR, BICUBIC, OTHER_MEAN), {**AS_THEY_ARE, "images": str(picture)}
    one, two, three = paths = [stored(tmp_path, model, **options) for model in names]
    ours, theirs = (erfscope.read(path)[0] for path in (one, two))
    assert ours.input.sha256 == theirs.input.sha256
    words = r"differ in resize and crop \(bilinear resize.* against bicubic resize.*\); .*name the models"
    refused(words, paths[:2])
    assert not paired(ours, theirs)
    assert Report(results=(ours, theirs)).differences() == [{}, {}]
    report = erfscope.compare([two, three])
    assert report[0].input.transform != report[1].input.transform
    assert report.differences()[1]["r50"][0] == pytest.approx(report[1]["r50"].value - report[0]["r50"].value)


@pytest.mark.slow
def test_a_live_comparison_records_the_resize_that_made_the_pixels(picture):
    report = erfscope.compare([BILINEAR, OTHER_MEAN], images=str(picture), **OPTIONS)
    first, other = (adapter_of(name).preprocess for name in (BILINEAR, OTHER_MEAN))
    for result in report:
        np.testing.assert_array_equal(result.picture, first.crop(Image.open(picture)))
    assert report[0].input.transform == first.text
    assert report[1].input.transform == f"{first.resize_text}, {other.scale_text}"
    assert other.text.startswith("bicubic")


@pytest.mark.slow
def test_a_drawn_picture_is_not_resized_and_serves_every_model_and_a_ready_tensor_is_as_it_is(tmp_path):
    report = erfscope.compare([stored(tmp_path, model) for model in (BILINEAR, BICUBIC)])
    assert [result.input.transform for result in report] == ["drawn at the input's size, mean 0.5, std 0.5"] * 2
    assert report.differences()[1]
    result = erfscope.analyze(conv(), images=torch.randn(2, 3, 32, 32), measures="r50")
    assert result.input.transform == "none (a ready tensor)"


@pytest.mark.slow
def test_a_model_with_a_transform_of_its_own_is_a_row_that_says_so(picture):
    def whole(image):
        return torch.from_numpy(np.array(image.resize((64, 64)))).permute(2, 0, 1) / 255

    ours = erfscope.wrap(conv(), transform=whole, input_size=(64, 64))
    options = {"images": str(picture), "input_size": (64, 64), **OPTIONS}
    for models, texts in (([BILINEAR, ours], (None, "comes with a")), ([ours, BILINEAR], (None, "comes without a"))):
        report = erfscope.compare(models, **options)
        for result, text in zip(report, texts, strict=True):
            assert result.ok if text is None else text in str(result.error)
    both = erfscope.compare([ours, erfscope.wrap(conv(1), transform=whole, input_size=(64, 64))], **options)
    assert both.ok


# --- The same kind of weights, units and precision ------------------------------------------------


def fallen(folder: Path) -> Path:
    """A stored result of a model that fell back to random weights."""
    with pytest.warns(erfscope.FallbackWarning):
        return stored(folder, BILINEAR, weights="auto")


@pytest.mark.slow
def test_a_stored_fallback_stands_beside_random_weights_that_were_asked_for_alone(tmp_path):
    path, given = fallen(tmp_path), stored(tmp_path, conv())
    for models in ([path, conv()], [conv(), path], [path, given]):
        words = r"weights are missing for test_resnet .*weights='random'"
        refused(words, models, samples=2, input_size=64, measures="r50")
    report = erfscope.compare([path, BICUBIC], **DRAWN)
    assert [result.weights.fallback for result in report] == [True, False]


@pytest.mark.slow
def test_other_weights_units_and_precisions_are_refused_by_the_word_that_asked_for_them(tmp_path):
    first, raw = stored(tmp_path, BILINEAR), stored(tmp_path, BILINEAR, weights="random-raw")
    words = r"differ in weights \(random against random-raw\).*--weights"
    refused(words, [first, raw])
    refused(words, [first, BICUBIC], **DRAWN | {"weights": "random-raw"})
    swept = erfscope.compare([BILINEAR], **DRAWN | {"weights": "random,random-raw"})
    assert [result.weights.source for result in swept] == ["random", "random-raw"]
    corner, words = stored(tmp_path, BILINEAR, unit="0x0"), r"differ in the unit asked for \(centre against 0,0\)"
    refused(words, [first, corner])
    refused(words, [first, BICUBIC], **DRAWN, unit=(0, 0))
    assert len(erfscope.compare([corner, BICUBIC], **DRAWN, unit=(0, 0))) == 2
    merged = erfscope.compare([corner, stored(tmp_path, BICUBIC, unit="0,0")])
    assert merged.settings["unit"] == "0,0"
    full, half = stored(tmp_path, conv()), stored(tmp_path, conv(), amp_dtype="bfloat16")
    assert [erfscope.read(path)[0].amp_dtype for path in (full, half)] == [None, "bfloat16"]
    refused(r"amp dtype \(None against bfloat16\)", [full, half])


# --- One size -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_made_for_one_size_sets_the_size_of_all():
    ours = erfscope.wrap(conv(), input_size=(96, 96))
    for models in ({"Ours": ours, "ResNet": BILINEAR}, {"ResNet": BILINEAR, "Ours": ours}):
        report = erfscope.compare(models, samples=2, **OPTIONS)
        assert [(result.status, result.input.size) for result in report] == [("ok", (96, 96))] * 2


# --- Differences ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared() -> Report:
    return erfscope.compare({"first": conv(), "second": conv(1)}, samples=8, input_size=32)


def paired_error(ours: object, theirs: object) -> float:
    """The error of the difference, written out: the jackknife's variance and bias, widened by Student's t."""
    gaps = [b - a for a, b in zip(ours.leave_one_out, theirs.leave_one_out, strict=True)]
    mean, free = sum(gaps) / len(gaps), len(gaps) - 1
    variance = free / len(gaps) * sum((gap - mean) ** 2 for gap in gaps)
    bias = free * (mean - theirs.value + ours.value)
    return stats.t.ppf(0.95, free) / stats.norm.ppf(0.95) * math.sqrt(variance + bias**2)


@pytest.mark.slow
def test_json_and_csv_hold_the_paired_differences_to_the_first_result(compared):
    first, second = compared.to_json()["results"]
    empty, row = csv.DictReader(io.StringIO(compared.table(format="csv")))
    assert (first["differences"], second["differences"]["to"]) == (None, first["id"])
    assert set(second["differences"]) == {"to", *SHOWN}
    assert {name.removesuffix("_diff") for name in row if name.endswith("_diff")} == set(SHOWN)
    assert (empty["r50_diff"], empty["r50_diff_se"]) == ("", "")
    for name in ("r50", "r90"):
        a, b = (result[name] for result in compared)
        assert float(row[f"{name}_diff"]) == second["differences"][name]["value"] == pytest.approx(b.value - a.value)
        assert float(row[f"{name}_diff_se"]) == second["differences"][name]["se"] == pytest.approx(paired_error(a, b))
        assert 0 < second["differences"][name]["se"] < math.hypot(a.se, b.se)
    named = next(csv.reader(io.StringIO(compared.table(["sigma_row"], format="csv"))))
    assert [name for name in named if "_diff" in name] == ["sigma_row_diff", "sigma_row_diff_se"]


def test_rows_that_are_no_pair_have_no_differences_anywhere(compared):
    other = replace(compared[1], input=replace(compared[1].input, n_images=3))
    for second in (other, replace(compared[1], status="degenerate")):
        report = Report(results=(compared[0], second))
        assert report.to_json()["results"][1]["differences"] is None
        assert list(csv.DictReader(io.StringIO(report.table(format="csv"))))[1]["r50_diff"] == ""
        assert "Δ vs first" not in terminal(report)
    assert "Δ vs first" in terminal(compared)


def terminal(report: Report) -> str:
    console = Console(width=200, color_system=None, record=True, file=io.StringIO())
    console.print(ComparisonTable(report_view(report)))
    return console.export_text()


def partners(report: Report) -> list[str | None]:
    found = [report.compared_with(result) for result in report]
    written = [entry["differences"] and entry["differences"]["to"] for entry in report.to_json()["results"]]
    # What is no pair has a partner and no differences.
    assert all(to is None or to == other.id for to, other in zip(written, found, strict=True))
    return [other and other.id for other in found]


def numbered(*rows: Result) -> Report:
    return made_up.report(*(replace(row, id=str(place)) for place, row in enumerate(rows)))


def both(**changes: object) -> list[Result]:
    return [made_up.result(**changes), made_up.vit(**changes)]


def at_stride(label: str, layer: str, stride: float) -> Result:
    result = made_up.result(label, layer=layer)
    return replace(result, unit=replace(result.unit, stride_px=(stride, stride)))


def at(result: Result, *index: int) -> Result:
    return replace(result, unit=replace(result.unit, index=index))


SIZES = [replace(made_up.result().input, size=(side, side)) for side in (224, 384)]
OURS = [at_stride("ours", f"layer{place}", stride) for place, stride in enumerate((4, 8, 8, 16))]
THEIRS = [at_stride("theirs", f"stage{place}", stride) for place, stride in enumerate((8, 16, 32))]
PARTNERS = {
    "under the same size": (
        [row for shown in SIZES for row in (*both(input=shown), made_up.result("third", input=shown))],
        [None, "0", "0", None, "3", "3"],
    ),
    "under the same weights": (
        [row for source in ("random", "random-raw") for row in both(weights=Weights(source=source, seed=0))],
        [None, "0", None, "2"],
    ),
    "under the same convention": (
        [row for name in ("jacobian", "luo") for row in both(convention=name)],
        [None, "0", None, "2"],
    ),
    "several reports, model by model": ([*both(), *both()], [None, "0", "0", "1"]),
    "several reports of which one has another convention": (
        [*both(), made_up.result(), made_up.vit(convention="luo")],
        [None, "0", "0", None],
    ),
    "weights that differ without a sweep": (
        [made_up.result(), made_up.vit(weights=Weights(source="given"))],
        [None, "0"],
    ),
    "stages of the same stride, with the last of several": (
        [*OURS, *THEIRS],
        [None, None, None, None, "2", "3", None],
    ),
    "without a sweep the last layers": ([OURS[-1], THEIRS[-1]], [None, "0"]),
    "units in the order they were asked for": (
        [at(made_up.result(), 3, 3), at(made_up.result(), 0, 0), at(made_up.vit(), 7, 7), at(made_up.vit(), 0, 0)],
        [None, None, "0", "1"],
    ),
    "one model's first row": ([made_up.result(layer=f"layer{depth}") for depth in (1, 2, 3)], [None, "0", "0"]),
}


@pytest.mark.parametrize(("rows", "expected"), PARTNERS.values(), ids=PARTNERS)
def test_every_row_is_compared_with_its_partner(rows, expected):
    assert partners(numbered(*rows)) == expected


def test_a_failed_row_takes_nothing_from_the_others():
    report = numbered(made_up.broken("first"), made_up.result(), made_up.vit())
    assert report.differences() == [{}, {}, {}]
    report = numbered(made_up.result(), made_up.broken(), made_up.vit())
    assert [bool(row) for row in report.differences()] == [False, False, True]
    # A model that runs at one of two sizes: the row that failed knows no layer, which is no sweep over layers.
    lost = replace(made_up.broken("other"), input=SIZES[1])
    rows = [made_up.result(input=SIZES[0]), made_up.result("other", input=SIZES[0]), made_up.vit(input=SIZES[0])]
    report = numbered(*rows, made_up.result(input=SIZES[1]), lost, made_up.vit(input=SIZES[1]))
    assert swept(report.results) == ("input",)
    assert [bool(row) for row in report.differences()] == [False, True, True, False, False, True]
    assert partners(report)[:4] + partners(report)[5:] == [None, "0", "0", None, "3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"input_size": "64,96"}, {"layer": "stages"}, {"weights": "random,random-raw"}, {"convention": "jacobian,luo"}],
)
def test_real_sweeps_give_every_model_every_setting_and_pair_what_is_alike(options):
    models = [BILINEAR, BICUBIC]
    report = erfscope.compare(models, **DRAWN | options)
    assert report.ok
    read = {
        "input_size": lambda r: r.input.size,
        "weights": lambda r: r.weights.source,
        "convention": lambda r: r.convention,
        "layer": lambda r: r.unit.stride_px,
    }[next(iter(options))]
    for result, row in zip(report, report.differences(), strict=True):
        other = report.compared_with(result)
        assert (other is None) == (result.label == models[0])
        if other is not None:
            assert row["r50"][0] == pytest.approx(result["r50"].value - other["r50"].value)
            assert read(result) == read(other)


# --- Writing --------------------------------------------------------------------------------------


def test_save_refuses_a_suffix_it_cannot_write(compared, tmp_path):
    for name in ("erf.htm", "erf.jpg", "erf.docx"):
        one_line(lambda name=name: compared.save(tmp_path / name), rf"cannot write '{name}'.*\.json, \.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_may_have_a_dot_in_its_name_if_it_is_said_to_be_one(compared, tmp_path):
    compared.save(f"{tmp_path}/run.2/")
    assert erfscope.read(tmp_path / "run.2")[0].label == "first"
    compared.save(tmp_path / "run.2", force=True)
    assert {*SHOWN} <= {*erfscope.read(tmp_path / "run.2")[0].measures}
