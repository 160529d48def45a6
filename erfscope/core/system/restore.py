"""Context managers that put the caller's modules, and PyTorch's state of the process, back as found."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from erfscope.core.system.precision import float32_precision
from erfscope.core.system.torch_internals import buffer_tables, hook_tables

#: States of generators, by the library that has them; equal states give equal numbers.
States = Mapping[str, Any]


class Loan:
    """The lock of the thread that measures a module, the depth of nested blocks, and what is put back after them."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.RLock(), 0
        self._found = contextlib.ExitStack()
        self._is_kept = False

    def keep_state(self, module: nn.Module) -> None:
        """Note a module as it is, before it is changed or run, to be put back when the outermost block ends."""
        if not self._is_kept:
            self._found.enter_context(_module_restored(module))
            self._is_kept = True

    def put_back(self) -> None:
        """Put the module back as it was found, if it was noted."""
        self._is_kept = False
        self._found.close()


_loans: WeakKeyDictionary[nn.Module, Loan] = WeakKeyDictionary()
_loans_lock = threading.Lock()
#: Open blocks of :func:`one_thread`, and the number of threads that the first of them found.
_on_one_thread, _threads_found, _threads_lock = 0, 1, threading.Lock()
#: Held while the global generators are seeded, read or set, so that threads do not share their numbers.
generators_lock = threading.RLock()


@contextmanager
def restored(*modules: nn.Module) -> Iterator[None]:
    """Lend modules to one measurement, and put them and PyTorch's state back as found, also after an exception.

    Put back are what a :class:`Loan` has noted, the random states of PyTorch, NumPy and Python, the default dtype,
    the gradient mode and the switches of TF32, which is off inside the block. Other changes by a forward pass stay."""
    _use_one_thread_after_forks()
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        for module in sorted(dict.fromkeys(modules), key=id):  # one order for all threads
            stack.enter_context(restoring_module(module))
        stack.enter_context(same_random_numbers())
        stack.enter_context(float32_precision(tf32=False))
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)


@functools.cache
def _use_one_thread_after_forks() -> None:
    """Let children that are forked from now on compute on one thread, as DataLoader's workers do.

    A child has none of the threads with which PyTorch has computed here, and would wait for them for ever. The call
    comes before the child can start a thread: of several that set their number at once, one finds no pool and dies.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@contextmanager
def restoring_module(module: nn.Module) -> Iterator[Loan]:
    """Lend a module to one thread at a time. What the loan has noted is put back when the outermost block ends."""
    with _loans_lock:
        loan = _loans.setdefault(module, Loan())
    with loan.lock:
        loan.depth += 1
        try:
            yield loan
        finally:
            loan.depth -= 1
            if loan.depth == 0:
                loan.put_back()


@contextmanager
def _module_restored(module: nn.Module) -> Iterator[None]:
    """Put training flags, ``requires_grad``, ``.grad``, buffers and hooks back as found."""
    flags = [(part, getattr(part, "training", False)) for part in module.modules()]  # a frozen scripted one has none
    parameters = [(parameter, parameter.requires_grad, parameter.grad) for parameter in module.parameters()]
    hooks = [(table, set(table)) for part in module.modules() for table in hook_tables(part)]
    buffers = [(table, dict(table)) for part in module.modules() for table in buffer_tables(part)]
    numbers = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if _is_copied(buffer)]
    try:
        yield
    finally:
        # Some models, such as LeViT, cache numbers that they compute from their weights until train() is called.
        set_training(module, flags[0][1])
        for part, flag in flags:
            part.training = flag
        for parameter, needs_gradient, gradient in parameters:
            if parameter.requires_grad is not needs_gradient:
                parameter.requires_grad_(needs_gradient)
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for table, keys in hooks:
            for key in table.keys() - keys:
                del table[key]
        for buffer_table, before in buffers:
            buffer_table.clear()
            buffer_table.update(before)
        for buffer, copied in numbers:
            _set_numbers(buffer, copied)


def set_training(module: nn.Module, mode: bool) -> None:
    """Set the training flags of a module and its parts, by ``train(mode)`` if all of them have PyTorch's own contract.

    A ``train`` of another kind, such as ultralytics', which starts a training, is not called, nor is one that fails, as
    of an exported program: the flags alone are set.
    """
    parts = list(module.modules())
    if all(map(_sets_training_flags, parts)):
        with contextlib.suppress(NotImplementedError):
            module.train(mode)
            return
    for part in parts:
        part.training = mode


def _sets_training_flags(part: nn.Module) -> bool:
    """Whether ``train`` takes a mode, which is a flag, as PyTorch's does."""
    train: Any = part.train
    if getattr(train, "__func__", None) is nn.Module.train or isinstance(part, torch.jit.ScriptModule):
        return True
    try:
        first, *others = inspect.signature(train).parameters.values()
    except (TypeError, ValueError):  # not callable, or without arguments
        return False
    collects = (first.VAR_POSITIONAL, first.VAR_KEYWORD)
    return (
        first.name == "mode"
        and (first.default is first.empty or isinstance(first.default, bool))
        and all(other.default is not other.empty or other.kind in collects for other in others)
    )


def _is_copied(buffer: Tensor) -> bool:
    return not is_lazy(buffer) and not buffer.is_meta and buffer.layout == torch.strided


def _set_numbers(buffer: Tensor, numbers: Tensor) -> None:
    with torch.inference_mode(buffer.is_inference()), torch.no_grad():
        if not torch.equal(buffer, numbers):
            buffer.copy_(numbers)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread what this one computes inside the block.

    Several wait for each other at every operation: longer than a small one takes, and for whatever else the machine
    does.
    """
    # PyTorch keeps the number for each thread, and for those that begin: blocks of several threads overlap.
    global _on_one_thread, _threads_found
    with _threads_lock:
        if not _on_one_thread:
            _threads_found = torch.get_num_threads()
        _on_one_thread += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _threads_lock:
            _on_one_thread -= 1
            torch.set_num_threads(_threads_found)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make ``dtype`` the process's default type of floating-point tensors inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Put the states of the global generators back after the block."""
    before = random_states()
    try:
        yield
    finally:
        _set_random_states(before)


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed the generators of PyTorch, NumPy and Python for the block, one thread at a time, and put their states back
    after it."""
    with generators_lock, same_random_numbers():
        # Not torch.manual_seed: it would seed GPUs that the process has not used yet, and nothing would put them back.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield


def random_states() -> States:
    """Return the state of every global generator; those of GPUs only if PyTorch uses them already."""
    cuda: Any = torch.cuda
    with generators_lock:
        legacy: Any = np.random.get_state()  # noqa: NPY002
        found = {
            "PyTorch's": bytes(torch.get_rng_state().numpy()),
            "NumPy's": (legacy[0], legacy[1].tobytes(), *legacy[2:]),
            "Python's": random.getstate(),
        }
        if cuda.is_initialized():
            found["CUDA's"] = tuple(bytes(state.numpy()) for state in cuda.get_rng_state_all())
        return found


def drawn_since(before: States) -> list[str]:
    """Return the names of the generators whose states have changed."""
    return [name for name, state in random_states().items() if state != before.get(name)]


def _set_random_states(states: States) -> None:
    kind, keys, *rest = states["NumPy's"]
    with generators_lock:
        torch.set_rng_state(_tensor(states["PyTorch's"]))
        np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002
        random.setstate(states["Python's"])
        for number, state in enumerate(states.get("CUDA's", ())):
            torch.cuda.set_rng_state(_tensor(state), number)


def _tensor(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
