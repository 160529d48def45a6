"""Processes that are killed while they write leave valid files, or none; see ``benchmarks/soak.py``, which kills more
of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have imported torch")
def test_killed_processes_leave_only_valid_files():
    # In a process of its own, which has taken no gradient yet: one that has cannot be forked.
    script = Path(__file__).parents[2] / "benchmarks" / "soak.py"
    ended = subprocess.run(
        [sys.executable, script, "--kills", "4"], capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"4 kills in \d+ s, (\d+)% of them at writing; 0 faults", ended.stdout)
    assert found, ended.stdout
    assert int(found[1]) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="as above")
def test_random_tolerances_raise_no_alarm_and_let_no_loss_pass():
    script = Path(__file__).parents[2] / "benchmarks" / "gate.py"
    asked = [sys.executable, script, "--unchanged", "2", "--graded", "3"]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("; 0 wrong") == 2
    assert "1 refused" in ended.stdout
