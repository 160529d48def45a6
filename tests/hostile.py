"""Factories and models whose code changes the process that it runs in, or ends it."""

from __future__ import annotations

from typing import Any

#: What a process survives.
ACTIONS = (
    *(
        "nothing",
        "chdir",
        "prints",
        "closes_stdout",
        "no_stdout",
        "signals",
        "filters",
        "dtype",
        "device",
        "threads",
        "generators",
    ),
    *(
        "environment",
        "path",
        "modules",
        "deterministic",
        "grad_off",
        "inference",
        "autocast",
        "numpy_errors",
        "deep",
        "gc_off",
    ),
)
#: What ends a program, and can be caught.
DEADLY = ("sys_exit", "system_exit")
#: And what cannot.
FATAL = ("exit_0", "exit_1", "exit_in_c", "segfault", "killed")

SOURCE = """
import atexit, ctypes, gc, os, random, signal, sys, tempfile, time, warnings

import numpy as np
import torch
from torch import nn

# For as long as the process lives: a mode that is left open, and closed when Python collects it, leaves PyTorch's own
# state in pieces.
KEPT = vars(torch).setdefault("kept_for_ever", [])


def nothing(): pass
def chdir(): os.chdir(tempfile.gettempdir())
def prints():
    print("by Python")
    sys.__stdout__.write("by Python too")
    os.write(1, b"by descriptor")
    os.system("echo by a child")
def prints_at_exit():
    prints()
    atexit.register(prints)
def closes_stdout():
    sys.stdout.close()
    sys.stderr.close()
def no_stdout(): sys.stdout = sys.stderr = None
def signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
def filters(): warnings.simplefilter("error")
def dtype(): torch.set_default_dtype(torch.float64)
def device(): torch.set_default_device("meta")
def threads(): torch.set_num_threads(3)
def generators():
    torch.manual_seed(5); np.random.seed(5); random.seed(5)
def environment(): os.environ.clear()
def path(): sys.path.clear()
def modules():
    for name in ("json", "numpy"):
        sys.modules.pop(name, None)
def deterministic(): torch.use_deterministic_algorithms(True)
def grad_off(): torch.set_grad_enabled(False)
def inference():
    KEPT.append(torch.inference_mode())
    KEPT[-1].__enter__()
def autocast(): torch.set_autocast_enabled("cpu", True)
def numpy_errors(): np.seterr(all="raise")
def deep(): sys.setrecursionlimit(sys.getrecursionlimit() + 100)
def gc_off(): gc.disable()

def sys_exit(): sys.exit(0)
def system_exit(): raise SystemExit(1)
def exit_0(): os._exit(0)
def exit_1(): os._exit(1)
def exit_in_c(): ctypes.CDLL(None).exit(0)
def segfault(): os.kill(os.getpid(), signal.SIGSEGV)
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def sleeps():
    print("asleep")
    time.sleep(60)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 2, 3, 2, 1, dtype=torch.float32), nn.Conv2d(2, 2, 3, 2, 1, dtype=torch.float32))


class Acting(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.net, self.act = plain(), act

    def forward(self, x):
        self.act()
        return self.net(x)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.act()
        return gradient, None


class ActingBackward(Acting):
    def forward(self, x):
        return self.net[1](Backward.apply(self.net[0](x), self.act))


def acted(act):
    net = plain()
    act()
    return net


for _name in [name for name, value in vars().copy().items() if callable(value) and not isinstance(value, type)]:
    _act = globals()[_name]
    globals()["factory_" + _name] = lambda act=_act: acted(act)
    globals()["forward_" + _name] = lambda act=_act: Acting(act)
    globals()["backward_" + _name] = lambda act=_act: ActingBackward(act)
"""


def hostile_net(action: str) -> Any:
    """A live module whose forward pass does this."""
    names: dict[str, Any] = {"__name__": "hostile_nets"}
    exec(SOURCE, names)
    return names[f"forward_{action}"]()
