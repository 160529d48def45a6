"""Claims about TF32: off while erfscope measures, unless asked for, and its switches are handed back as found."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
import warm
from torch import nn

import erfscope
from erfscope.core.system.precision import float32_precision

HAS_NEWER = hasattr(torch.backends, "fp32_precision")
SETTINGS = [
    "pass",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.allow_tf32 = False",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cudnn.allow_tf32 = False",
]
NEWER_SETTINGS = [
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cudnn.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.fp32_precision = 'tf32'; torch.backends.cudnn.conv.fp32_precision = 'ieee'",
]
SCRIPT = """
import torch, warnings
warnings.simplefilter("error")

def older():
    found = []
    for read in (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision,
    ):
        try:
            found.append(read())
        except RuntimeError:
            found.append("refused")
    return found

def newer():
    b = torch.backends
    if not hasattr(b, "fp32_precision"):
        return []
    levels = b, b.cudnn, b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn, b.mkldnn.matmul, b.mkldnn.conv, b.mkldnn.rnn
    return [level.fp32_precision for level in levels]

exec(SETTING)
before = older(), newer()
from erfscope.core.system.precision import float32_precision
for _ in range(2):
    with float32_precision(tf32=False):
        assert True not in older() and "high" not in older() and "medium" not in older(), older()
        assert "refused" in before[0] or older() == [False, False, "highest"], older()
        assert {*newer()} <= {"ieee"}, newer()
        with float32_precision(tf32=True):
            assert {*newer()} <= {"tf32"}, newer()
            assert "refused" in before[0] or older() == [True, True, "high"], older()
        assert {*newer()} <= {"ieee"}, newer()
    assert (older(), newer()) == before, (before, older(), newer())
"""


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS + NEWER_SETTINGS * HAS_NEWER)
def test_every_setting_of_both_interfaces_is_put_back(setting):
    """In a process of its own: PyTorch has no way back to its defaults."""
    done = warm.run([sys.executable, "-c", SCRIPT.replace("SETTING", repr(setting))])
    assert done.returncode == 0, done.stderr


class Net(nn.Module):
    """Notes both switches in its forward pass, and fails if it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.conv, self.fails = nn.Conv2d(3, 4, 3), fails

    def forward(self, x):
        SEEN.add(switches())
        if self.fails:
            raise ValueError("no")
        return self.conv(x)


#: What the forward passes of a test have seen, also those of copies.
SEEN: set[tuple[bool, bool]] = set()


def switches() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def both_on():
    """TF32 allowed by the process, as many training scripts do it."""
    with float32_precision(tf32=True):
        yield


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.usefixtures("both_on")
def test_both_switches_are_off_inside_a_measurement_and_as_found_afterwards(plain):
    SEEN.clear()
    erfscope.analyze(Net(), input_size=16, samples=1, plain=plain)
    assert {(False, False)} == SEEN
    assert switches() == (True, True)
    failed = erfscope.analyze(Net(fails=True), input_size=16, samples=1, plain=plain, errors="row")
    assert "ValueError: no" in failed.error
    assert switches() == (True, True)


def test_they_are_put_back_after_the_last_of_several_threads():
    found = switches()
    inside, leave = threading.Barrier(3), threading.Event()

    def measure(*, tf32: bool) -> None:
        with float32_precision(tf32=tf32):
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=measure, kwargs={"tf32": tf32}) for tf32 in (True, False)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert switches() == (False, False)  # while threads differ, all compute in full precision
    with float32_precision(tf32=True):
        assert switches() == (False, False)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert switches() == found


def test_tf32_is_allowed_where_it_is_asked_for_and_what_it_changes_is_said():
    SEEN.clear()
    result = erfscope.analyze(Net(), input_size=16, samples=1, tf32=True, plain=True)
    assert {(True, True), (False, False)} == SEEN  # recording and the comparison are in full precision
    (text,) = [finding.text for finding in result.findings if finding.code == "tf32_error"]
    if not torch.cuda.is_available():
        assert text == "TF32 changes the map of the first image by 0.00% (relative L1) and its r50 by 0.00%"
    assert result.options == {"tf32": True}
