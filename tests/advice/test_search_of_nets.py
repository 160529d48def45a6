"""The search of a small net beside all of its candidates in all draws. benchmarks/advise.py does so for three nets,
where a third of the draws is enough."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import measured_once
import pytest

import erfscope
from erfscope.apps.advise import search as search_module

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "advise.py"

pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.mark.slow
def test_a_search_finds_what_all_candidates_in_all_draws_do(monkeypatch):
    monkeypatch.setattr("erfscope.apps.advise.candidates.WIDE_BLOCKS", ())
    monkeypatch.setattr("erfscope.apps.advise.candidates.MOST_PARTS", 1)
    spec = importlib.util.spec_from_file_location("advise_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "advise_benchmark", benchmark)
    spec.loader.exec_module(benchmark)
    monkeypatch.setitem(benchmark.NETS, "stack", "sigma_row>=4x")
    # Draws that decide on the target take no part in the front.
    monkeypatch.setattr(search_module, "LOOKS", ())
    monkeypatch.setattr(erfscope, "analyze", measured_once.analyze)
    monkeypatch.setattr(search_module, "analyze", measured_once.analyze)
    found = benchmark.compare("stack", 16, 8)
    assert found.candidates >= 6
    assert found.loss <= found.allowed
