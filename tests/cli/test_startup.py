"""The garbage collector of a command does not look through what was imported."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from erfscope.cli.main import main

SCRIPT = """
import gc, importlib, weakref
from erfscope.cli.run.startup import freeze_imports

freeze_imports()
gc.collect()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen


class Circle:
    def __init__(self):
        self.me = self


circle = weakref.ref(Circle())
assert circle() is not None
gc.collect()
assert circle() is None, "what no module brought is collected"
assert gc.get_freeze_count() <= frozen

import wave  # any module that is not there yet
gc.collect()
assert gc.get_freeze_count() > frozen + 20, (gc.get_freeze_count(), frozen)
"""


def test_what_modules_bring_is_frozen_and_other_circles_are_collected():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_command_within_another_process_leaves_the_collector_alone(capsys):
    before = list(gc.callbacks)
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert not stop.value.code
    assert gc.callbacks == before
    assert "erfscope" in capsys.readouterr().out
