"""Results that were stored: they keep what they were measured with, and say what is missing or unlike."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import erfscope
from erfscope import ErfscopeError, MeasurementError
from erfscope.core.answer.measures import measure_map
from erfscope.core.system import environment
from erfscope.show import with_error
from erfscope.show.view.sentences import methods_sentence

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

OPTIONS = {"weights": "random", "samples": 4, "input_size": 96, "layer": "layer2"}


@pytest.fixture(scope="module")
def result() -> erfscope.Result:
    return erfscope.analyze("test_resnet", **OPTIONS)


@pytest.fixture
def stored(result, tmp_path) -> Path:
    erfscope.Report(results=(result,)).save(tmp_path / "stored")
    return tmp_path / "stored"


@pytest.fixture
def old(stored) -> Path:
    """The same, as if measured long ago."""
    file = stored / "report.json"
    document = json.loads(file.read_text())
    for versions in (document["environment"]["versions"], document["results"][0]["versions"]):
        versions |= {"torch": "1.13.0", "erfscope": "0.0.1"}
    file.write_text(json.dumps(document))
    return stored


@pytest.mark.slow
def test_options_that_a_stored_result_was_not_measured_with_are_refused(tmp_path):
    erfscope.sweep("test_resnet", **OPTIONS).save(tmp_path / "stored")
    stored = {"A": str(tmp_path / "stored")}
    same = {**OPTIONS, "unit": "center", "seed": 0, "synthetic": "leaves", "batch_size": 2, "measures": "r50"}
    assert len(erfscope.compare(stored, **same)) == 1
    for given, words in (
        ({"layer": "layer3"}, "layer layer2, not layer3"),
        ({"layer": {"A": "layer3"}}, "layer layer2, not layer3"),
        ({"images": "photos/"}, "images none, not photos/"),
        ({"seed": 3}, "seed 0, not 3"),
        ({"unit": "corner"}, "unit centre, not corner"),
        ({"input_size": 64}, "input size 96x96, not 64x64"),
        ({"trust": True}, "trust none, not True"),
    ):
        with pytest.raises(MeasurementError, match=re.escape(words)):
            erfscope.compare(stored, **given)
    with pytest.raises(MeasurementError, match="layer layer2, not layer3"):
        erfscope.compare({**stored, "B": "test_resnet"}, **{**OPTIONS, "layer": "layer3"})


@pytest.mark.slow
def test_versions_are_those_of_the_measurement(old):
    report = erfscope.compare([str(old)])
    assert report.environment["versions"]["torch"] == "1.13.0"
    assert report[0].versions["erfscope"] == "0.0.1"
    assert "measured with erfscope 0.0.1 (PyTorch 1.13.0" in methods_sentence(report)
    report.save(old.parent / "again.json")
    assert erfscope.read(old.parent / "again.json")[0].versions == report[0].versions


@pytest.mark.slow
def test_rows_of_other_versions_say_so_and_have_a_paragraph_of_their_own(old, result):
    report = erfscope.compare([str(old), result])
    assert next(w.text for w in report[1].findings if w.code == "versions").startswith(
        "measured with other versions than the first row: erfscope "
    )
    assert not [w for w in report[0].findings if w.code == "versions"]
    assert methods_sentence(report).count("were measured with erfscope") == 2
    alike = erfscope.compare([result, result])
    assert not [w for row in alike for w in row.findings if w.code == "versions"]


def test_an_optional_package_that_is_not_installed_is_left_out_and_differs_from_no_version(result, monkeypatch):
    def version(name: str) -> str:
        if name in ("transformers", "captum"):
            raise importlib.metadata.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr("erfscope.core.system.environment.importlib.metadata.version", version)
    found = environment.versions.__wrapped__()
    assert "transformers" not in found
    assert found["captum"] is None
    with_it = replace(result, versions={**found, "transformers": "5.0"})
    report = erfscope.compare([replace(result, versions=found), with_it])
    assert not [w for row in report for w in row.findings if w.code == "versions"]


@pytest.mark.slow
def test_a_map_that_is_gone_is_named_and_the_numbers_stand(stored, result, capsys):
    (stored / f"{result.id}.npz").unlink()
    (again,) = erfscope.read(stored)
    assert again.map is None
    assert again["r50"].value == result["r50"].value
    assert [w.text for w in again.findings if w.code == "map_missing"] == [
        f"its map {result.id}.npz does not lie beside the report: the numbers stand, and there is nothing to draw"
    ]
    # Of a report that says so already it is said once.
    document = json.loads((stored / "report.json").read_text())
    other = {"code": "far", "text": "of something else"}
    document["results"][0]["findings"] = [other, *(asdict(each) for each in again.findings)]
    (stored / "report.json").write_text(json.dumps(document))
    (twice,) = erfscope.read(stored)
    assert [each.code for each in twice.findings].count("map_missing") == 1


@pytest.mark.parametrize("convention", ["energy", "luo"])
def test_a_stored_map_keeps_what_its_numbers_are(tmp_path, convention):
    result = erfscope.analyze(nn.Conv2d(3, 4, 3), input_size=8, samples=1, convention=convention, measures="r50")
    result.save(tmp_path / "stored")
    (again,) = erfscope.read(tmp_path / "stored")
    assert again.map.scale == result.map.scale == again.scale
    assert again["r50"].value == result["r50"].value
    assert measure_map(again.map, ["r50"]) == {"r50": result["r50"].value}


def test_a_coordinate_that_no_pixel_has_is_refused_along_one_axis(stored):
    document = json.loads((stored / "report.json").read_text())
    document["results"][0]["unit"]["center_px"][1] = 1e15
    (stored / "report.json").write_text(json.dumps(document))
    with pytest.raises(ErfscopeError, match="coordinates those of pixels"):
        erfscope.read(stored)


def test_a_map_that_was_edited_or_exchanged_is_noticed(stored, result):
    file = stored / f"{result.id}.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ErfscopeError) as caught:
        erfscope.read(stored)
    assert str(caught.value) == (
        f"{file} is damaged (ValueError: its sha256 is not the one in the report); measure again and store the result"
    )


@pytest.mark.slow
def test_a_refusal_names_the_folders(stored, result):
    other = erfscope.analyze("test_resnet", **{**OPTIONS, "unit": "corner"})
    erfscope.Report(results=(other,), settings={"unit": "corner"}).save(stored.parent / "corner")
    erfscope.Report(results=(result,), settings={"unit": "centre"}).save(stored.parent / "centre")
    with pytest.raises(MeasurementError, match=r"corner cannot be compared with .*centre: they differ in the unit"):
        erfscope.compare([stored.parent / "centre", stored.parent / "corner"])


@pytest.mark.slow
def test_another_size_is_refused_with_the_option_that_helps(stored):
    with pytest.raises(
        MeasurementError, match=r"input size \(96x96 against 160x160\).*; measure both with --input-size 96x96"
    ):
        erfscope.compare([str(stored), "test_resnet"], weights="random", samples=4, input_size=160)


@pytest.mark.slow
def test_a_folder_survives_a_figure_that_does_not_fit(result, tmp_path):
    report = erfscope.Report(results=(result,))
    with pytest.raises(ErfscopeError, match="kind 'depth' needs two or more layers"):
        report.save(tmp_path / "kept", figure="depth")
    assert {"report.json", "index.html", f"{result.id}.npz", f"{result.id}.png"} <= {
        path.name for path in (tmp_path / "kept").iterdir()
    }


@pytest.mark.parametrize("name", ["n" * 300 + ".png", "n" * 300 + "/", "n" * 300])
def test_a_name_that_is_too_long_is_refused_before_measuring(name, tmp_path, monkeypatch):
    from erfscope.show import check_output

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ErfscopeError, match="File name too long; choose another place"):
        check_output(name, force=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        (
            {},
            (
                "Hutchinson's estimator",
                "divided by their total",
                "preprocessed as: drawn at the input's size, mean 0.5",
            ),
            (),
        ),
        ({"convention": "luo"}, ("averaged over images as they are",), ("Hutchinson",)),
    ],
)
def test_the_methods_sentence_is_true_of_the_run(options, words, absent):
    report = erfscope.sweep("test_resnet", **{**OPTIONS, "layer": "layer1", "measures": "r50"}, **options)
    sentence = methods_sentence(report)
    assert all(word in sentence for word in words), sentence
    assert not any(word in sentence for word in absent), sentence


@pytest.mark.slow
def test_a_measure_is_its_number_with_error_and_unit(result, stored):
    r50, r90 = result["r50"], result["r90"]
    value, unit = re.fullmatch(r"([\d.]+ ± [\d.]+) (px)", str(r50)).groups()
    assert (value, unit) == (with_error(r50.value, r50.se), "px")
    assert f"{r50:.1f} {r50}" == f"{r50.value:.1f} {r50}"
    assert 0 < r50 < r90
    assert r90 >= r50 >= float(r50)
    assert not r50 <= 0
    assert str(result["entropy_area"]).endswith(" px²")
    assert str(result["far_mass"]) == with_error(result["far_mass"].value, result["far_mass"].se)
    assert str(erfscope.read(stored)[0]["r50"]) == str(r50)
    inner = erfscope.analyze("test_resnet", **{**OPTIONS, "wrt": "layer1", "measures": "r50"})
    assert str(inner["r50"]).endswith(" cells")
    with pytest.raises(TypeError, match="not a number"):
        format(replace(r50, value=None), ".1f")


def test_a_map_is_an_array(result):
    array = np.asarray(result.map)
    assert np.shares_memory(array, result.map.values)
    assert not array.flags.writeable
    assert np.array(result.map, dtype=np.float32).flags.writeable
    np.testing.assert_array_equal(np.array(result.map, dtype=np.float32), result.map.values.astype(np.float32))


def test_one_result_is_saved_alone(result, tmp_path):
    result.save(tmp_path / "one")
    assert [row.measures for row in erfscope.read(tmp_path / "one")] == [result.measures]
    with pytest.raises(ErfscopeError, match="exists already"):
        result.save(tmp_path / "one")
    result.save(tmp_path / "one", force=True)


def test_a_data_frame_has_the_numbers_of_the_report(result):
    pytest.importorskip("pandas")
    report = erfscope.Report(results=(replace(result, label="18"), replace(result, id="other", label="NA")))
    frame = report.to_dataframe(["r50", "r90"])
    assert list(frame["label"]) == ["18", "NA"]
    assert list(frame["r50"]) == [result["r50"].value] * 2
    assert list(frame["r90_se"]) == [result["r90"].se] * 2
    assert frame["r50_diff"].isna().tolist() == [True, False]
