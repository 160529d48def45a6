"""What is done for one of many rows does not grow with their number; `benchmarks/scale.py` prints the times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import erfscope
from erfscope import Report
from erfscope.core.answer.report import unique_ids
from erfscope.core.answer.storage.files import store_rows
from erfscope.core.run.engine import measure
from erfscope.show.view import report_view

OPTIONS = {"input_size": 8, "samples": 1, "measures": "coverage"}


def nets(count: int) -> dict[str, nn.Module]:
    return {f"net {number}": nn.Conv2d(3, 2, 3) for number in range(count)}


@pytest.fixture(scope="module")
def report() -> Report:
    return erfscope.compare(nets(1), **OPTIONS)


def system_calls(work: Callable[[], object]) -> int:
    """How often some work asks the system for something."""
    names = list[str]()

    def note(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__module__", "") == "posix":
            names.append(getattr(called, "__name__", ""))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len([name for name in names if name in ("stat", "lstat", "scandir", "listdir", "open")])


def test_a_stored_row_takes_as_many_system_calls_however_many_there_are(report, tmp_path: Path):
    calls = [system_calls(lambda: store_rows(tmp_path, report, earlier=None)) for _ in range(4)]
    assert calls[1] == calls[-1]
    assert len(erfscope.read(tmp_path).results) == 1


@pytest.mark.slow
def test_a_resumed_run_reads_the_conditions_of_a_model_alone(tmp_path: Path, monkeypatch):
    read, place_of = list[str](), measure.place_of
    monkeypatch.setattr(measure, "place_of", lambda result: read.append(result.label) or place_of(result))
    by_count = {}
    for count in (2, 6):
        models = nets(count)
        erfscope.compare(models, keep_in=tmp_path / str(count), **OPTIONS)
        read.clear()
        erfscope.compare(models, resume=tmp_path / str(count), **OPTIONS)
        by_count[count] = len(read) / count
    assert by_count[2] == by_count[6] == 2  # What is wanted, and what is there.


def test_a_page_pairs_blocks_with_their_hosts_once(report, monkeypatch):
    paired, partners = list[int](), report_view.partners
    monkeypatch.setattr(report_view, "partners", lambda results: paired.append(len(results)) or partners(results))
    monkeypatch.setattr(Report, "compared_with", None)
    (host,) = report
    blocks = [replace(host, host=host.id, label=f"{host.label} + {number}") for number in range(5)]
    many = replace(report, results=unique_ids([host, *blocks]))
    view = report_view.report_view(many)
    assert paired == [6]
    assert len(view.costs) == 5
