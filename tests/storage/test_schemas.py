"""The schemas are those of the types that files are read by, and what does not fit a type is named."""

from __future__ import annotations

import functools
import json
import operator
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import erfscope
from erfscope import ErfscopeError, gate

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "erfscope" / "core" / "answer" / "storage" / "schema"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with a run that was stopped after two images, and a baseline."""
    folder, stops = tmp_path_factory.mktemp("stored"), iter([False, True])
    asked = {"weights": "random", "input_size": 32, "layer": "layer1", "measures": "r50,best_shape", "batch_size": 1}
    report = erfscope.sweep("test_resnet", **asked, samples=4, stop=lambda: next(stops, True))
    report.save(folder / "stopped", drawn=False)
    erfscope.check("test_resnet", **asked, samples=4, baseline=folder / gate.FILE, update=True)
    return folder


@pytest.fixture
def document(stored):
    """The report of that run, to be damaged."""
    return json.loads((stored / "stopped" / "report.json").read_text())


def owner(document, path):
    """What holds a field of a stored report's first result."""
    return functools.reduce(operator.getitem, path[:-1], document["results"][0])


def read(document, folder):
    (folder / "report.json").write_text(json.dumps(document))
    return erfscope.read(folder)


@pytest.mark.slow
def test_the_schemas_are_what_the_types_say():
    code = "import json, schemas; print(json.dumps(schemas.schemas()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "docs" / "hooks",
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    generated = json.loads(done.stdout)
    assert sorted(generated) == sorted(file.name for file in SCHEMAS.glob("*.json"))
    for name, text in generated.items():
        assert (SCHEMAS / name).read_text() == text, (
            f"{name} is not of the present types; run python docs/hooks/schemas.py"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("report-1.json", "stopped/report.json"), ("baseline-1.json", gate.FILE)])
def test_no_record_may_lack_a_field_or_have_another(name, file, stored):
    schema, document = (json.loads(each.read_text()) for each in (SCHEMAS / name, stored / file))
    records = [schema, *schema["$defs"].values()]
    assert [
        record.get("title")
        for record in records
        if record["type"] == "object" and record["additionalProperties"] is True
    ] == []
    jsonschema.Draft202012Validator.check_schema(schema)
    for place in (document, next(iter(document["results"] if "results" in document else document["entries"].values()))):
        place["another"] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)
        del place["another"]
        jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["seed"], "x", "result.seed: Expected int, got str"),
        (["status"], "fine", "result.status: Invalid enum value 'fine'"),
        (["trf", "exact"], 1, "result.trf.exact: Expected bool, got int"),
        (["trf", "box_px"], [[0]], "result.trf.box_px[0]: Expected array of length 2, got 1"),
        (["measures", "r50", "se"], [], r"result.measures[...].se: Expected float | null, got array"),
        (["shard", "seen"], -1, "result.shard.seen: Expected int >= 0"),
    ],
)
def test_what_does_not_fit_is_named(path, value, said, document, tmp_path):
    owner(document, path)[path[-1]] = value
    with pytest.raises(ErfscopeError) as caught:
        read(document, tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path} is damaged or of another version (")
    assert str(caught.value).endswith("; measure again and store the result")


@pytest.mark.parametrize(
    "path", [["id"], ["weights"], ["weights", "source"], ["input", "n_images"], ["trf", "exact"], ["shard", "groups"]]
)
def test_what_is_missing_is_named(path, document, tmp_path):
    del owner(document, path)[path[-1]]
    where = ".".join(["result", *path[:-1]])
    with pytest.raises(ErfscopeError, match=rf"{where}: Object missing required field {path[-1]}"):
        read(document, tmp_path)


@pytest.mark.parametrize("schema", ["erfscope.report/2", "erfscope.report/0", "erfscope.study/1", None, 7])
def test_a_report_of_another_version_is_refused_in_one_line(schema, document, tmp_path):
    with pytest.raises(ErfscopeError) as caught:
        read({**document, "schema": schema}, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'report.json'} is not an erfscope report of this version: its schema is {str(schema)!r}, not"
        " 'erfscope.report/1'; measure again and store the result"
    )


def test_what_does_not_fit_in_a_baseline_is_named(stored, tmp_path):
    document = json.loads((stored / gate.FILE).read_text())
    document["entries"]["test_resnet"]["measures"]["r50"]["value"] = "x"
    (tmp_path / gate.FILE).write_text(json.dumps(document))
    with pytest.raises(ErfscopeError) as found:
        gate.read(tmp_path / gate.FILE)
    assert "entry 'test_resnet'.measures[...].value: Expected float | null, got str" in str(found.value)
    assert str(found.value).startswith(f"the baseline {tmp_path / gate.FILE} is damaged (")
