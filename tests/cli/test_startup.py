"""The garbage collector of a command does not look through what was imported, and nobody else's is touched."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from erfscope.cli.run.startup import importing_torch

SCRIPT = """
import gc, sys, types, weakref
from erfscope.cli.run.startup import importing_torch


class Circle:
    def __init__(self):
        self.me = self


try:
    with importing_torch():
        assert not gc.isenabled()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert gc.isenabled() and not gc.get_freeze_count()
with importing_torch():
    sys.modules["torch"] = types.ModuleType("torch")
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
circle = weakref.ref(Circle())
assert circle() is not None
gc.collect()
assert circle() is None
with importing_torch():
    assert gc.isenabled()
assert gc.get_freeze_count() <= frozen
"""


def test_what_is_imported_is_frozen_once_and_later_circles_are_collected():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_where_torch_is_there_already_the_collector_is_left_alone(enabled):
    before, frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if enabled else gc.disable)()
    try:
        with importing_torch():
            assert gc.isenabled() is enabled
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert gc.get_freeze_count() == frozen
