"""Denormal numbers are zero while erfscope measures, in every thread, and what they were before and after it."""

import pytest
import torch

from erfscope.core.system import denormals, torch_internals
from erfscope.core.system.denormals import denormals_as_zero

#: Enough that two threads share them.
MANY = 1 << 20


def kept() -> int:
    """How many products of half a million denormal numbers for each thread are not zero."""
    return int((torch.full((MANY,), 1e-39) * 0.5).view(torch.int32).count_nonzero())


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    # A thread begins with the flag of the one that begins it: both are there before a test sets its own.
    kept()
    yield
    torch.set_num_threads(before)


def test_they_are_zero_in_every_thread_and_only_inside(two_threads):
    assert kept() == MANY
    with denormals_as_zero():
        assert kept() == 0
        with denormals_as_zero():
            assert kept() == 0
        assert kept() == 0
    assert kept() == MANY


def test_a_callers_flag_stays_and_an_error_puts_it_back(two_threads):
    torch.set_flush_denormal(True)
    with denormals_as_zero():
        pass
    assert denormals.SMALLEST == 0
    torch.set_flush_denormal(False)
    with pytest.raises(KeyError), denormals_as_zero():
        raise KeyError
    assert kept() == MANY


def test_without_openmp_it_is_this_thread_alone(monkeypatch):
    monkeypatch.setattr(torch_internals.torch._C, "__file__", "/nowhere.so")
    torch_internals.openmp_parallel.cache_clear()
    try:
        assert torch_internals.openmp_parallel() is None
        with denormals_as_zero():
            assert float(torch.tensor(1e-39) * 0.5) == 0
    finally:
        torch_internals.openmp_parallel.cache_clear()
    assert float(torch.tensor(1e-39) * 0.5) > 0
