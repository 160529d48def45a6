"""The baseline file: readable, valid, and whole whatever happens while it is written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from filelock import FileLock, Timeout

import erfscope
from erfscope.apps.gate.gate import BaselineEntry, BaselineMeasure, baseline_bytes, entry_of, read, structure, update
from erfscope.apps.gate.lock import NAME, locked
from erfscope.core import ErfscopeError, Trf

SCHEMA = json.loads((files("erfscope.core.answer.storage") / "schema" / "baseline-1.json").read_text())
FIELD = Trf(
    size_px=(7, 9),
    box_px=((-1, 5), (0, 8)),
    stride_px=(2.0, 2.0),
    center_px=(2.0, 4.0),
    center_exact=True,
    local_size_px=(7, 9),
    local_box_px=((-1, 5), (0, 8)),
    exact=True,
    reference_px=(16, 16),
)
QUESTION = {
    "input_size": [16, 16],
    "model": "m",
    "unit": "centre",
    "wrt": "image",
    "convention": "jacobian",
    "draws": 1,
    "dtype": "float32",
    "method": "gradient",
    "samples": 20,
    "seed": 0,
    "stimuli": "leaves, version 1",
    "weights": "own",
    **dict.fromkeys(("insert", "layer", "model_kwargs", "alpha", "amp_dtype")),
}


def entry(value: float = 1.0) -> BaselineEntry:
    r50 = BaselineMeasure(value=value, se=0.1, n=20, over="images", leave_one_out=(0.9, 1.1))
    return BaselineEntry(
        protocol=QUESTION,
        structure=structure("body", (4, 8, 8), (1, 2), FIELD),
        weights={"source": "own", "sha256": "0" * 64},
        measures={"r50": r50, "offset": BaselineMeasure(value=None, se=None, n=20, over="images")},
        recorded={"torch": "2", "threads": 1},
    )


def test_entries_come_back_as_they_were_stored_and_those_of_other_names_stay(tmp_path):
    update(tmp_path / "b.json", {"x": entry(1.0), "y": entry(2.0)})
    update(tmp_path / "b.json", {"y": entry(3.0), "z": entry(4.0)})
    assert read(tmp_path / "b.json") == {"x": entry(1.0), "y": entry(3.0), "z": entry(4.0)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "b.json"]


@pytest.mark.slow
def test_a_measured_entry_is_what_the_schema_describes_and_comes_back(tmp_path, small, pictures):
    result = erfscope.analyze(small, images=pictures, draws=4)
    found = entry_of(result, asked={"layer": None, "unit": "centre", "model_kwargs": None})
    update(tmp_path / "b.json", {"small": found})
    document = json.loads((tmp_path / "b.json").read_text())
    jsonschema.validate(document, SCHEMA)
    assert read(tmp_path / "b.json")["small"] == found
    circumstances = document["entries"]["small"]["recorded"]
    assert (circumstances["device"], circumstances["transform"]) == ("cpu", result.input.transform)
    measures = document["entries"]["small"]["measures"]
    assert measures["r50"]["value"] == pytest.approx(float(result["r50"]), rel=1e-6)
    assert "best_shape" not in measures


def test_keys_are_sorted_and_every_value_has_a_line_of_its_own():
    text = baseline_bytes({"b": entry(), "a": entry()}).decode()
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text == baseline_bytes({"a": entry(), "b": entry()}).decode()

    def ordered(pairs):
        assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
        return dict(pairs)

    json.loads(text, object_pairs_hook=ordered)
    assert '     "leave_one_out": [0.9, 1.1],\n     "n": 20,\n' in text
    changed = baseline_bytes({"b": entry(), "a": entry(2.0)}).decode()
    lines = [(old, new) for old, new in zip(text.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert lines == [('     "value": 1.0', '     "value": 2.0')]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    update(tmp_path / "real" / "b.json", {"x": entry()})
    (tmp_path / "b.json").symlink_to(tmp_path / "real" / "b.json")
    update(tmp_path / "b.json", {"y": entry()})
    assert (tmp_path / "b.json").is_symlink()
    assert sorted(read(tmp_path / "real" / "b.json")) == ["x", "y"]


def test_what_cannot_be_compared_with_is_never_stored(tmp_path):
    with pytest.raises(ValueError, match="NaN"):
        update(tmp_path / "b.json", {"x": BaselineEntry(structure=entry().structure, unusable="NaN")})
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("", ["damaged"]),
        ("[]", ["not an erfscope baseline", "None"]),
        ('{"schema": "erfscope.report/1"}', ["not an erfscope baseline", "erfscope.report/1"]),
        (
            '{"schema": "erfscope.baseline/2", "entries": {}}',
            ["erfscope.baseline/2", "erfscope.baseline/1", "install the erfscope that wrote it"],
        ),
        ('{"schema": "erfscope.baseline/1", "entries": {"x": {}}}', ["damaged", "structure"]),
        ('{"schema": "erfscope.baseline/1", "entries": []}', ["damaged"]),
        ('{\n<<<<<<< HEAD\n "schema": "a"\n=======\n', ["merge conflict", "accept what is found"]),
        ("\udcff", ["cannot read the baseline"]),
    ],
)
def test_a_baseline_that_cannot_be_used_says_why_and_is_left_as_it_is(tmp_path, text, fragments):
    file = tmp_path / "b.json"
    content = text.encode(errors="surrogateescape")
    file.write_bytes(content)
    for use in (lambda: read(file), lambda: update(file, {"x": entry()})):
        with pytest.raises(ErfscopeError) as found:
            use()
        assert "\n" not in str(found.value)
        # In pytest and in Python there are no options of a command line.
        assert "--" not in str(found.value)
        for fragment in fragments:
            assert fragment in str(found.value)
    assert file.read_bytes() == content


WRITER = """
import dataclasses, sys
from pathlib import Path
from erfscope.apps.gate.gate import read, update
pattern = next(iter(read(Path("pattern.json")).values()))
print("ready", flush=True)
sys.stdin.readline()
for number in range(15):
    update(Path("b.json"), {f"{sys.argv[1]}-{number}": pattern})
"""


@pytest.mark.slow
def test_processes_that_update_at_once_lose_nothing(tmp_path):
    update(tmp_path / "pattern.json", {"x": entry()})
    start = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(name)], **start) for name in range(3)]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 3
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert sorted(read(tmp_path / "b.json")) == sorted(f"{name}-{number}" for name in range(3) for number in range(15))
    assert {path.name for path in tmp_path.glob("[!.]*")} == {"b.json", "pattern.json"}


KILLED = """
import os, signal
from pathlib import Path
from erfscope.apps.gate.gate import read, update
written = Path("b.json")
# The new text is on the disk, and has not yet taken its place.
os.chmod = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
update(written, {"y": next(iter(read(written).values()))})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is killed like this there")
def test_a_kill_while_it_is_written_leaves_the_old_one_and_no_lock(tmp_path):
    update(tmp_path / "b.json", {"x": entry()})
    before = (tmp_path / "b.json").read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "b.json").read_bytes() == before
    update(tmp_path / "b.json", {"z": entry()})
    assert sorted(read(tmp_path / "b.json")) == ["x", "z"]


def test_the_lock_of_a_baseline_lies_beside_it_whatever_the_folder_of_temporary_files(tmp_path):
    file = tmp_path / "new" / "b.json"
    with locked(file), pytest.raises(Timeout):
        FileLock(file.parent / NAME, timeout=0).acquire()
    with locked(file):
        pass


@pytest.mark.slow
def test_the_gate_needs_no_torch_to_be_imported():
    code = "import erfscope.apps.gate, sys; print(sorted({'torch', 'timm', 'matplotlib', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(erfscope.__file__).parents[1]
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("measures r50 value", "NaN"),
        ("measures r50 value", '"3.4"'),
        ("measures r50 value", "[1]"),
        ("measures r50 se", '"x"'),
        ("measures r50 leave_one_out", '"abcdefgh"'),
        ("measures r50 leave_one_out", "[null, 1]"),
        ("measures r50 leave_one_out", "{}"),
        ("structure center_px", "[NaN, NaN]"),
        ("structure trf_px", "null"),
        ("structure map_shape", '"abc"'),
        ("structure unit", "null"),
    ],
)
def test_what_would_pass_every_comparison_is_damage(tmp_path, path, value):
    """NaN compares as false with everything."""
    place = document = json.loads(baseline_bytes({"x": entry()}))
    *keys, last = ["entries", "x", *path.split()]
    for key in keys:
        place = place[key]
    place[last] = "HERE"
    (tmp_path / "b.json").write_text(json.dumps(document).replace('"HERE"', value))
    with pytest.raises(ErfscopeError, match="is damaged"):
        read(tmp_path / "b.json")


def test_a_merge_that_kept_both_sides_and_endless_nesting_are_damage(tmp_path):
    one = json.dumps(json.loads(baseline_bytes({"x": entry()}))["entries"]["x"])
    twice = f'{{"schema": "erfscope.baseline/1", "entries": {{"x": {one}, "x": {one}}}}}'
    for text, said in ((twice, "'x' stands there twice"), ("[" * 100_000, "is damaged")):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(ErfscopeError, match=said):
            read(tmp_path / "b.json")
