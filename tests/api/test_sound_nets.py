"""Nets of sequences and of sound have the maps of plain autograd."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_nets_of_sequences_and_sound_have_the_maps_of_plain_autograd(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from sound import CASES, is_right, rows

    names = ("SincNet front of PyanNet", "EEGNet-like", "WaveNet-like")
    quick = tuple(case for case in CASES if case.name in names)
    assert len(quick) == 3
    assert not [row for row in rows(quick) if not is_right(*row)]
