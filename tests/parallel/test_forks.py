"""A process that has measured is forked: its children measure too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")]

#: Forks two that have not measured: each, with as many threads as it is given or has set, measures, forks 20 children
#: one after the other, and says what becomes of them; a child that hangs is ended.
PROGRAM = """
import os, signal, sys
import torch, torch._dynamo
from torch import nn
import erfscope

net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1))
ask = lambda: erfscope.analyze(net, input_size=64, samples=2, errors="row", measures="r50")

def measure_and_fork():
    before, threads = ask()["r50"].value, torch.get_num_threads()
    for _ in range(20):
        child = os.fork()
        if not child:
            signal.alarm(30)
            found = ask()
            is_right = "start it by spawn" in found.error if found.error else abs(found["r50"].value - before) < 1e-3
            os._exit(0 if is_right and torch.get_num_threads() == 1 else 9)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            sys.exit(f"a child ended with {status}")
    print("threads", threads, torch.get_num_threads(), flush=True)

for is_set in (False, True):
    parent = os.fork()
    if not parent:
        if is_set:
            torch.set_num_threads(2)
        measure_and_fork()
        os._exit(0)
    os.waitpid(parent, 0)
"""


def test_children_of_a_process_that_has_measured_measure_on_one_thread_or_say_why_not():
    # Also on one core the parent has threads that its children lack.
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["threads", "2", "2"] * 2


#: Forks one that has computed with two threads and never measured; its child measures what one thread is enough for.
COMPUTED = """
import os, signal, sys
import torch
from torch import nn

torch.set_num_threads(2)
torch.randn(1000, 1000) @ torch.randn(1000, 1000)
child = os.fork()
if not child:
    signal.alarm(60)
    import erfscope
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
    erfscope.layers(net, input_size=16)
    assert erfscope.analyze(net, input_size=16, samples=2, measures="r50").ok
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_a_process_that_has_computed_on_its_own_measures_small_nets():
    command = [sys.executable, "-W", "ignore", "-c", COMPUTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
