"""Reports: the shipped schema describes them, they survive a round trip, and nothing half-written is left behind."""

from __future__ import annotations

import csv
import errno
import io
import json
import subprocess
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import erfscope
from erfscope import ErfscopeError, Report
from erfscope.core.answer.storage.writing import FORMATS
from erfscope.show import check_output, with_error

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

OPTIONS = {"weights": "random", "samples": 5, "layer": "layer3", "unit": "centre,0x0"}


@pytest.fixture(scope="module")
def report() -> Report:
    return erfscope.sweep("test_resnet", **OPTIONS)


def schema() -> dict:
    return json.loads((files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text())


@pytest.mark.slow
def test_the_json_is_valid_and_strict(report):
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document, schema())
    assert [entry["unit"]["index"] for entry in document["results"]] == [[5, 5], [0, 0]]


@pytest.mark.slow
def test_a_folder_is_read_back_whole(report, tmp_path):
    report.save(tmp_path / "erf")
    again = erfscope.read(tmp_path / "erf")
    assert again.to_json() == report.to_json()
    for ours, theirs in zip(report, again, strict=True):
        np.testing.assert_array_equal(ours.map.values, theirs.map.values)
        assert theirs.map.center_px == ours.map.center_px
        assert theirs.map.provenance == ours.map.provenance
        assert theirs.map.provenance["input"]["sha256"] == ours.input.sha256
    names = {path.name for path in (tmp_path / "erf").iterdir()}
    assert names >= {"index.html", "report.json", *(f"{r.id}{s}" for r in report for s in (".npz", ".png"))}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_suffix_is_written_and_never_over_something_else(report, tmp_path, suffix):
    target = tmp_path / f"x{suffix}"
    report.save(target)
    first = target.read_bytes()
    assert first
    with pytest.raises(ErfscopeError, match="exists already"):
        report.save(target)
    report.save(target, force=True)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.slow
def test_a_failure_while_writing_leaves_nothing(report, tmp_path, monkeypatch):
    def broken(*_args, **_kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("erfscope.core.answer.storage.files.map_bytes", broken)
    with pytest.raises((OSError, ErfscopeError)):
        report.save(tmp_path / "erf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", [False, True])
def test_an_empty_folder_is_filled_where_it_is(report, tmp_path, linked):
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir(mode=0o750)
    link.symlink_to(place)
    before = place.stat()
    report.save(link if linked else place)
    assert (place.stat().st_ino, place.stat().st_mode) == (before.st_ino, before.st_mode)
    assert erfscope.read(place).to_json() == report.to_json()
    assert link.is_symlink()
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_a_mount_point_holds_one_whole_report(report, small_disk, monkeypatch):
    one = Report(results=report.results[:1], settings=report.settings)
    one.save(small_disk)
    with pytest.raises(ErfscopeError, match="exists already"):
        report.save(small_disk)
    before, rename = {path.name: path.read_bytes() for path in small_disk.iterdir()}, Path.rename

    def failing(path, target):
        if path.name == "report.json" and path.parent != small_disk:
            monkeypatch.undo()
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ErfscopeError, match="Input/output error"):
        report.save(small_disk, force=True)
    assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == before
    report.save(small_disk, force=True)
    assert erfscope.read(small_disk).to_json() == report.to_json()
    assert not [path for path in small_disk.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["erf", "erf.png", ""])
def test_a_folder_that_cannot_be_written_to_is_found_by_trying(small_disk, name):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ErfscopeError, match=r"cannot be written to \(Read-only file system\); choose another place"):
        check_output(small_disk / name, force=True)


def test_force_does_not_replace_a_folder_of_other_things(report, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ErfscopeError, match="not an erfscope report"):
        report.save(tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_csv_has_conditions_and_errors_in_every_row(report):
    rows = list(csv.DictReader(io.StringIO(report.table(format="csv"))))
    assert [row["unit"] for row in rows] == ["5,5", "0,0"]
    for row, result in zip(rows, report, strict=True):
        assert row["label"] == "test_resnet"
        assert row["weights"] == "random"
        assert float(row["r50"]) == result["r50"].value
        assert float(row["r50_se"]) == result["r50"].se


def test_results_are_found_by_id(report):
    assert report[report[1].id] is report[1]
    with pytest.raises(ErfscopeError, match="ask by id"):
        report["test_resnet"]
    with pytest.raises(ErfscopeError, match="did you mean 'r50'"):
        report[0]["r5"]


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [(61.84, 1.13, "61.8 ± 1.1"), (61.84, 3.2, "62 ± 3"), (0.01234, 0.0005, "0.0123 ± 0.0005"), (None, None, "–")],
)
def test_numbers_are_rounded_by_their_error(value, se, text):
    assert with_error(value, se) == text


@pytest.mark.parametrize("name", ["\0", "a\0b/", "\0.json", "a\0/b.png"])
def test_a_path_with_a_null_character_is_refused_before_anything_is_written(report, tmp_path, name):
    with pytest.raises(ErfscopeError, match="is no name of a file or folder: it holds a null character"):
        report.save(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())
