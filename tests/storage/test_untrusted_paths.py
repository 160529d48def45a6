"""Names out of reports, labels and baselines never lead outside the place that was asked for, links included."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from conftest import SmallNet

import erfscope
from erfscope import ErfscopeError, Report
from erfscope.apps.gate.artifacts import write_artifacts
from erfscope.apps.gate.gate import CheckReport, Verdict, entry_of

pytestmark = pytest.mark.usefixtures("memory_unplanned", "figures_undrawn")

NAMES = ["../../x", "/etc/x", "..", "a/../../x", "..\\..\\x", "x\x00y", "~/x", "\x1b[2Jx", ".x"]


@pytest.fixture(scope="module")
def report() -> Report:
    return erfscope.sweep(SmallNet(), input_size=16, samples=2, device="cpu", layer="down")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def outside(top: Path, inside: str) -> set[str]:
    """Files that do not lie in a folder."""
    return {file for file in files(top) if not file.startswith(f"{inside}/")}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_label_names_no_file_outside_the_folder(tmp_path: Path, name: str) -> None:
    report = erfscope.sweep(SmallNet(), label=name, input_size=16, samples=1, device="cpu", layer="down")
    (tmp_path / "in").mkdir()
    report.save(tmp_path / "in" / "erf")
    assert outside(tmp_path, "in/erf") == {"in", "in/erf"}
    assert erfscope.read(tmp_path / "in" / "erf")[0].label == report[0].label


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_stored_id_names_no_file_outside_the_folder(report: Report, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    report.save(tmp_path / "in" / "erf")
    file = tmp_path / "in" / "erf" / "report.json"
    document = json.loads(file.read_text())
    document["results"][0]["id"] = name
    file.write_text(json.dumps(document))
    before = files(tmp_path)
    with contextlib.suppress(ErfscopeError):
        erfscope.read(tmp_path / "in" / "erf").save(tmp_path / "in" / "again")
    assert outside(tmp_path, "in/again") - before <= {"in/again"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_check_of_any_name_leaves_its_artifacts_in_their_folder(report: Report, tmp_path: Path, name: str) -> None:
    verdict = Verdict(name=name, word="fail", cause="", obtained=entry_of(report[0]), result=report[0])
    written = write_artifacts(CheckReport(verdicts=(verdict,), baseline=tmp_path / "b.json"), tmp_path / "in" / "out")
    assert {path.resolve().parent for path in written} == {tmp_path / "in" / "out"}
    assert files(tmp_path) == {"in", "in/out", *(f"in/out/{path.name}" for path in written)}


def test_an_output_that_is_a_link_replaces_the_link_and_not_what_it_points_to(report: Report, tmp_path: Path) -> None:
    (tmp_path / "precious.json").write_text("years of work")
    (tmp_path / "erf.json").symlink_to(tmp_path / "precious.json")
    with pytest.raises(ErfscopeError, match="exists already"):
        report.save(tmp_path / "erf.json")
    report.save(tmp_path / "erf.json", force=True)
    assert (tmp_path / "precious.json").read_text() == "years of work"
    assert not (tmp_path / "erf.json").is_symlink()


@pytest.mark.slow
def test_links_inside_a_folder_that_is_replaced_keep_their_targets(report: Report, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    report.save(tmp_path / "erf")
    (tmp_path / "erf" / "more").symlink_to(tmp_path / "precious")
    (tmp_path / "erf" / "index.html").unlink()
    (tmp_path / "erf" / "index.html").symlink_to(tmp_path / "precious" / "thesis.txt")
    report.save(tmp_path / "erf", force=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / "erf" / "index.html").is_symlink()


def test_artifacts_replace_links_of_their_names(report: Report, tmp_path: Path) -> None:
    (tmp_path / "precious.json").write_text("years of work")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "check.json").symlink_to(tmp_path / "precious.json")
    write_artifacts(CheckReport(verdicts=(), baseline=tmp_path / "b.json"), tmp_path / "out")
    assert (tmp_path / "precious.json").read_text() == "years of work"
