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


#: Runs each script in a process of its own, which ends as any does unless the script ends it, and tells them apart;
#: only PyTorch and timm are imported before.
ONE_BY_ONE = """
import os, sys, torch, timm

for script in sys.argv[1:]:
    for stream in (sys.stdout, sys.stderr):
        print(end="\\0", file=stream, flush=True)
    if os.fork() == 0:
        exec(script, {"__name__": "__main__"})
        sys.exit()
    print(end=f"\\0{os.waitstatus_to_exitcode(os.wait()[1])}", flush=True)
"""
RUN = "import runpy, sys; sys.argv = ['erfscope', *{!r}.split()]; runpy.run_module('erfscope', run_name='__main__')"
#: A command, and what it does not import.
QUIET = {
    "analyze test_resnet --samples 2 --weights random --json": "captum matplotlib jinja2 transformers cv2",
    "compare test_resnet test_vit --weights random --samples 2": "",
    "layers test_resnet": "",
}
#: Names of PyTorch that are taken away, and how a model is measured then.
TAKEN_AWAY = {
    "torch._subclasses.fake_tensor.FakeTensorMode": "plain",
    "torch.utils.checkpoint.CheckpointFunction": "graph",
}
WITHOUT = """
import os, warnings, torch
warnings.simplefilter("ignore")
delattr({}, {!r})
import erfscope
result = erfscope.analyze("test_resnet", weights="random", samples=1, input_size=64, measures="r50")
assert result.ok, result.error
print(result.computed.path, result.computed.because)
print(erfscope.theoretical("test_resnet", weights="random", input_size=64).size_px, flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_rooms_and_commands_start_by_themselves_and_say_nothing_on_stderr_up_to_the_end(tmp_path):
    """A room can be had before anything else of the package is imported; a private name of PyTorch that is missing is
    no error: the model is run whole, for a reason that is said, or what the name served is left out."""
    rooms = ["adapters", "core", "show", "gate", "theory", "studies"]
    scripts = [
        f"import erfscope, os\nassert erfscope.{room}.__name__.endswith('.{room}')\nos._exit(0)" for room in rooms
    ]
    scripts += [
        f"import atexit, sys; atexit.register(lambda: print({{*{unused.split()}}} & {{*sys.modules}})); "
        + RUN.format(words)
        for words, unused in QUIET.items()
    ]
    scripts += [WITHOUT.format(*name.rsplit(".", 1)) for name in TAKEN_AWAY]
    call = [sys.executable, "-c", ONE_BY_ONE, *scripts]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=False)
    out, errors = ran.stdout.split("\0")[1:], ran.stderr.split("\0")[1:]
    assert out[1::2] == ["0"] * len(scripts), ran.stderr
    assert errors[: -len(TAKEN_AWAY)] == [""] * (len(rooms) + len(QUIET))
    commands, missing = out[2 * len(rooms) :: 2][: len(QUIET)], out[-2 * len(TAKEN_AWAY) :: 2]
    for said in commands:
        assert "test_resnet" in said
        assert said.endswith("set()\n")
    for said, path in zip(missing, TAKEN_AWAY.values(), strict=True):
        found, _, because = said.splitlines()[0].partition(" ")
        assert (found, bool(because)) == (path, path == "plain")


LIGHT = """
import sys
import erfscope
import erfscope.cli.main
from erfscope import FallbackWarning, adapters, core

for *words, heavy in (
    ("layers", "--help", "torch timm captum numpy scipy cv2 matplotlib"),
    ("--help", "torch timm captum numpy scipy cv2 matplotlib"),
    ("study", "--list", "torch"),
):
    try:
        erfscope.cli.main.main(words)
    except SystemExit as stop:
        assert stop.code == 0
    assert not {*heavy.split()} & {*sys.modules}, words
    if words[0] == "layers":
        assert "erfscope.cli.layers" in sys.modules
        assert "erfscope.apps.tile.command" not in sys.modules
"""


@pytest.mark.slow
def test_importing_helping_and_listing_load_no_heavy_package_and_no_other_command():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
