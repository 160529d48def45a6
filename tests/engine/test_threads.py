"""A small pass runs on one thread, a large one on those that PyTorch has; their number is put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("width", "side", "threads"), [(4, 16, 1), (64, 128, 3)])
@pytest.mark.parametrize("plain", [False, True])
def test_a_small_pass_runs_on_one_thread(three_threads, width, side, threads, plain):
    seen = []

    def readout(y, _signs):
        seen.append(torch.get_num_threads())
        return y.sum(1)

    net = nn.Sequential(*(nn.Conv2d(3 if n == 0 else width, width, 5, padding=2) for n in range(6)))
    asked = {"input_size": side, "synthetic": "noise", "samples": 2, "plain": plain}
    erfscope.analyze(net, convention=(readout, lambda g: g.abs().sum(1)), **asked)
    assert {*seen} == {threads}
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_is_put_back_after_a_failure(three_threads):
    class Failing(nn.Conv2d):
        def forward(self, x):
            if not x.is_meta and x.requires_grad:
                raise ValueError("no")
            return super().forward(x)

    assert erfscope.analyze(Failing(3, 3, 3), input_size=8, plain=True, samples=1, errors="row").status == "error"
    assert torch.get_num_threads() == 3


def test_threads_that_measure_at_once_leave_the_number_for_those_that_begin_later(three_threads):
    nets = [nn.Conv2d(3, 3, 3) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda net: erfscope.analyze(net, input_size=8, samples=1), nets))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [3]
    assert torch.get_num_threads() == 3
