"""The search of a small net beside all of its candidates in all draws. benchmarks/advise.py does so for three nets,
where a third of the draws is enough."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

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
    known, analyze = {}, erfscope.analyze

    @functools.wraps(analyze)
    def measured_once(model, **options):
        """What is asked for twice in the same words, by the search and for all draws."""
        asked = repr((model, *sorted((name, value) for name, value in options.items() if name != "progress")))
        if asked not in known:
            known[asked] = analyze(model, **options)
        return known[asked]

    monkeypatch.setattr(erfscope, "analyze", measured_once)
    monkeypatch.setattr(search_module, "analyze", measured_once)
    found = benchmark.compare("stack", 16, 8)
    # Most draws of the search are among all.
    assert len(known) < found.draws[1] + 40
    assert found.candidates >= 6
    assert found.loss <= found.allowed
