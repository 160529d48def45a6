"""Reports of the schema's first version, as erfscope stored them then: read with their meaning, whoever reads them."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import erfscope
from erfscope.errors import ErfscopeError
from erfscope.page import html

pytestmark = pytest.mark.usefixtures("memory_unplanned")

OLD = Path(__file__).parents[1] / "data" / "report-1"
SHARDS = {
    "weights": "random",
    "samples": 4,
    "input_size": 32,
    "layer": "layer1",
    "measures": "r50,r90,entropy_area,best_shape,gaussian_r2,center_share",
}


def stored(name: str) -> dict:
    return json.loads((OLD / name).read_text())


def test_the_stored_files_are_of_version_1():
    for name in ("comparison.json", "shard-1/report.json", "isolated/report.json"):
        assert stored(name)["schema"] == "erfscope.report/1"
    first, line = [json.loads(text) for text in (OLD / "isolated" / "models.jsonl").read_text().splitlines()]
    assert first["schema"] == "erfscope.models/1"
    assert "schema" not in line


def test_ratios_are_read_as_quotients_of_the_two_sides_and_all_else_as_it_was():
    document = stored("comparison.json")
    for entry, result in zip(document["results"], erfscope.read(OLD / "comparison.json"), strict=True):
        side = math.sqrt(math.prod(entry["trf"]["reference_px"]))
        field = None if entry["trf"]["global"] else math.sqrt(math.prod(entry["trf"]["size_px"]))
        ratios = 0
        for name, old in entry["measures"].items():
            new = result.measures[name]
            assert (new.value, new.se, list(new.leave_one_out), new.kind) == (
                old["value"],
                old["se"],
                old["leave_one_out"],
                old["kind"],
            )
            if old["of_input"] is None:
                assert (new.of_input, new.of_trf) == (None, None)
                continue
            ratios += 1
            power = 2 if old["kind"] == "area" else 1
            assert new.of_input == pytest.approx(old["value"] / side**power, rel=1e-12)
            # What version 1 said of lengths other than radii holds.
            assert old["of_input"] / new.of_input == pytest.approx(2 if old["kind"] == "radius" else 1)
            assert new.of_trf == (None if field is None else pytest.approx(old["value"] / field**power, rel=1e-12))
        assert ratios >= 15
        assert [w.code for w in result.warnings] == [
            {"skip_dominated": "own_cell_dominated"}.get(w["code"], w["code"]) for w in entry["warnings"]
        ]
        assert result.warnings[0].text == entry["warnings"][0]["text"].removeprefix("skip_dominated: ")


def test_an_old_report_is_shown_compared_and_stored_in_the_present_form(tmp_path):
    report = erfscope.read(OLD / "comparison.json")
    schema = json.loads((files("erfscope") / "storage" / "schema" / "report-2.json").read_text())
    jsonschema.validate(json.loads(json.dumps(report.to_json(), allow_nan=False)), schema)
    report.save(tmp_path / "again.json")
    again = erfscope.read(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["schema"] == "erfscope.report/2"
    assert again.to_json() == report.to_json()
    assert "skip_dominated" not in html(report)
    rows = erfscope.compare([str(OLD / "comparison.json"), "test_resnet"], weights="random", samples=4, input_size=64)
    assert len(rows) == 3
    for name in ("r50", "r90", "entropy_area"):
        # The same model on the same pictures, before and now.
        assert rows[0][name].of_input == pytest.approx(rows[2][name].of_input, rel=5e-3)
        assert rows[0][name].of_trf == pytest.approx(rows[2][name].of_trf, rel=5e-3)


def test_old_shards_are_merged_with_each_other_and_with_new_ones(tmp_path):
    old = erfscope.merge([erfscope.read(OLD / f"shard-{number}") for number in (1, 2)])[0]
    whole = erfscope.analyze("test_resnet", **SHARDS)
    assert old["r50"].value == pytest.approx(whole["r50"].value, rel=5e-3)
    assert old["r50"].of_trf == pytest.approx(whole["r50"].value / math.sqrt(math.prod(whole.trf.size_px)), rel=5e-3)
    assert [w.code for w in old.warnings].count("own_cell_dominated") == [w.code for w in whole.warnings].count(
        "own_cell_dominated"
    )
    erfscope.sweep("test_resnet", **SHARDS, shard="2/2").save(tmp_path / "new", drawn=False)
    mixed = erfscope.merge([erfscope.read(OLD / "shard-1"), erfscope.read(tmp_path / "new")])[0]
    assert mixed["r50"].value == pytest.approx(whole["r50"].value, rel=5e-3)
    assert mixed.input.text == whole.input.text == "4 synthetic images (dead leaves, version 1, seed 0)"
    assert [w.text for w in mixed.warnings if w.code == "reactivated"] == [
        w.text for w in whole.warnings if w.code == "reactivated"
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("erfscope.report/3", "reads up to erfscope.report/2; install a newer erfscope"),
        ("erfscope.report/0", "not an erfscope report"),
        ("erfscope.report/x", "not an erfscope report"),
        ("erfscope.report/²", "not an erfscope report"),
        ("erfscope.study/1", "not an erfscope report"),
        (None, "not an erfscope report"),
    ],
)
def test_other_versions_are_refused_in_one_line(tmp_path, schema, words):
    (tmp_path / "r.json").write_text(json.dumps({**stored("comparison.json"), "schema": schema}))
    with pytest.raises(ErfscopeError, match=words):
        erfscope.read(tmp_path / "r.json")


@pytest.mark.parametrize("damage", ["kind", "trf", "value", "warnings", "reference"])
def test_a_damaged_old_report_is_one_clear_error(tmp_path, damage):
    document = stored("comparison.json")
    entry = document["results"][0]
    if damage == "kind":
        del entry["measures"]["r50"]["kind"]
    elif damage == "value":
        entry["measures"]["r50"]["value"] = [1]
    elif damage == "warnings":
        entry["warnings"] = [1]
    elif damage == "reference":
        entry["trf"]["reference_px"] = []
    else:
        entry["trf"] = 7
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(ErfscopeError, match=r"r\.json is damaged"):
        erfscope.read(tmp_path / "r.json")
