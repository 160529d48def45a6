"""The garbage collector of a command rests while torch is imported, and a command prints nothing on stderr that is not
its own."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from erfscope.show.command.console import importing_torch

SCRIPT = """
import gc, sys, types
from erfscope.show.command.console import importing_torch

frozen = gc.get_freeze_count()  # Python 3.12 freezes some objects itself
try:
    with importing_torch():
        assert not gc.isenabled()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert gc.isenabled() and gc.get_freeze_count() == frozen
with importing_torch():
    sys.modules["torch"] = types.ModuleType("torch")
assert gc.isenabled()
assert gc.get_freeze_count() == frozen
"""


def test_the_collector_rests_during_the_import_and_freezes_nothing():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_where_torch_is_there_already_the_collector_is_left_alone(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with importing_torch():
            assert gc.isenabled() is enabled
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


FIRST = """
import os, sys, torch, timm, captum.attr, matplotlib.figure
for room in sys.argv[1:]:
    if os.fork() == 0:
        import erfscope
        assert getattr(erfscope, room).__name__.endswith(f".{room}")
        os._exit(0)
    assert os.wait()[1] == 0, room
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_room_can_be_had_of_the_package_before_anything_else_of_it_is_imported():
    rooms = ["adapters", "core", "show", "gate", "theory", "studies"]
    ran = subprocess.run([sys.executable, "-c", FIRST, *rooms], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["compare test_resnet test_vit --weights random --samples 2", "layers test_resnet"]
)
def test_a_command_prints_nothing_on_stderr_up_to_the_end_of_its_process(arguments, tmp_path):
    """So does ``analyze``, see tests/cli/test_cli.py."""
    call = [sys.executable, "-m", "erfscope", *arguments.split()]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "test_resnet" in ran.stdout
