"""The table of volumes and clips in benchmarks/zoo.md, as far as its quick rows go."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_volumes_and_clips_have_the_maps_of_plain_autograd(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from volumes import CLIPS, VOLUMES, rows

    quick = ("V-Net-like", "MedNeXt-like", "X3D-like without squeezing", "SlowFast-like", "transformers TimeSformer")
    found = [*rows(tuple(case for case in (*VOLUMES, *CLIPS) if case.name in quick))]
    assert len(found) >= 4
    wrong = [(row.case.name, row.result.layer, row.map_off, row.outside) for row in found if not row.is_right]
    assert not wrong
