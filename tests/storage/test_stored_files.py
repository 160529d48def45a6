"""Files that an earlier erfscope wrote under the present schemas: a report, shards, a stopped run and a
baseline are read on."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import erfscope
from erfscope import gate

STORED = Path(__file__).parents[1] / "data" / "report-2"
OPTIONS = {"weights": "random", "samples": 4, "input_size": 32, "layer": "layer1"}
MEASURES = "r50,r90,entropy_area,best_shape,gaussian_r2,center_share"


@pytest.fixture(scope="module")
def whole() -> erfscope.Report:
    return erfscope.sweep("test_resnet", **OPTIONS, measures=MEASURES)


def assert_alike(ours: erfscope.Result, theirs: erfscope.Result) -> None:
    assert (ours.id, ours.status, ours.unit, ours.trf, ours.input) == (
        theirs.id,
        theirs.status,
        theirs.unit,
        theirs.trf,
        theirs.input,
    )
    assert [w.code for w in ours.warnings] == [w.code for w in theirs.warnings]
    assert ours.measures.keys() == theirs.measures.keys()
    for name, measure in ours.measures.items():
        value = theirs[name].value
        assert measure.value == (value if isinstance(value, str) else pytest.approx(value, rel=5e-3))
        assert len(measure.leave_one_out) == len(theirs[name].leave_one_out)


def test_the_stored_files_are_what_the_schemas_describe():
    for file in STORED.rglob("*.json"):
        schema = "baseline-1.json" if file.name == gate.FILE else "report-2.json"
        jsonschema.validate(
            json.loads(file.read_text()), json.loads((files("erfscope") / "storage" / "schema" / schema).read_text())
        )


@pytest.mark.parametrize("name", ["whole.json", "shard-1", "shard-2", "stopped", "isolated"])
def test_a_stored_report_says_the_same_when_it_is_stored_again(name, tmp_path):
    before = json.loads((STORED / name / "report.json" if (STORED / name).is_dir() else STORED / name).read_text())
    report = erfscope.read(STORED / name)
    report.save(tmp_path / "again", drawn=False)
    after = json.loads((tmp_path / "again" / "report.json").read_text())
    for entry in after["results"]:
        # Recorded since.
        assert [entry.pop(name) for name in ("options", "positions", "trust", "verification")] == [{}, None, None, None]
        assert (entry["shard"] and entry["shard"].pop("nan_cause")) is None
        assert {*map(type, map(entry["input"].pop, ("resize", "scale", "described")))} == {str}
    for entry in (*before["results"], *after["results"]):
        entry["map_file"] = None
        entry["map"] = entry["map"] if name != "whole.json" else None
        entry["warnings"] = [w for w in entry["warnings"] if w["code"] != "map_missing"]
        assert list(entry) == list(before["results"][0])
    assert after == present(before)


def present(stored: object) -> object:
    """A stored document with the texts that read otherwise now."""
    text = json.dumps(stored)
    for then, now in (
        ("4 synthetic leaves pictures (version 1, seed 0)", "4 synthetic images (dead leaves, version 1, seed 0)"),
        (
            "4 branches that are zero at initialisation were switched on",
            "4 residual branches start at zero; switched on to be measured (`random-raw` keeps them)",
        ),
        ("2 of 4 pictures", "2 of 4 images"),
        ("2 pictures of", "2 images of"),
    ):
        text = text.replace(then, now)
    return json.loads(text)


def test_a_stored_report_is_read_as_it_was_measured(whole):
    assert_alike(erfscope.read(STORED / "whole.json")[0], whole[0])


def test_stored_shards_are_merged(whole):
    assert_alike(erfscope.merge([erfscope.read(STORED / f"shard-{number}") for number in (1, 2)])[0], whole[0])


def test_a_stored_run_that_was_stopped_goes_on(whole):
    assert erfscope.read(STORED / "stopped")[0].part.seen == 2
    assert_alike(
        erfscope.sweep("test_resnet", **OPTIONS, measures=MEASURES, batch_size=1, resume=STORED / "stopped")[0],
        whole[0],
    )


def test_a_stored_baseline_is_compared_with_and_written_as_it_was(tmp_path):
    entries = gate.read(STORED / gate.FILE)
    assert gate.baseline_bytes(entries).decode() == (STORED / gate.FILE).read_text()
    for seed, word in ((0, "pass"), (1, "cannot tell")):
        shutil.copy(STORED / gate.FILE, tmp_path / gate.FILE)
        found = erfscope.check("test_resnet", **OPTIONS, measures=MEASURES, seed=seed, baseline=tmp_path / gate.FILE)
        assert found.word == word
