"""Claims about batches that do not fit into memory: they are run in smaller ones, and nothing is counted twice."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import warm
from PIL import Image
from torch import Tensor, nn

import erfscope
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.run import Forward
from erfscope.core.system.environment import ran_out

ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    " 4000 bytes."
)
OUT_OF_MEMORY: list[Callable[[], BaseException]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: RuntimeError(ALLOCATOR),
    lambda: RuntimeError("could not create a primitive"),
    lambda: MemoryError(),
]


class Fail(torch.autograd.Function):
    """The identity; the nth backward pass through it raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int, error: Callable[[], BaseException]) -> Tensor:
        ctx.left, ctx.error = number, error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        ctx.left -= 1
        if ctx.left == 0:
            raise ctx.error()
        return g, None, None


class Log:
    """What a module has seen. It has no dictionary: what that held would be put back after the measurement."""

    __slots__ = ("inputs", "kept", "sizes")

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.inputs: list[weakref.ref[Tensor]] = []
        #: Whether anything of the passes before was still there when a pass began.
        self.kept = False


class Narrow(nn.Module):
    """The identity, which fails for more than ``most`` images: in the forward pass, or in the nth backward pass of a
    graph."""

    def __init__(self, most: int, error: Callable[[], BaseException], backward: int | None = None) -> None:
        super().__init__()
        self.most, self.error, self.backward = most, error, backward
        self.log = Log()

    def forward(self, x: Tensor) -> Tensor:
        with (
            torch._C.DisableTorchFunction()
        ):  # a model that is seen to look where it lies is recorded again as it is measured
            planned = x.device.type == "meta" or type(x) is not Tensor or not torch.is_grad_enabled()
        if planned:  # or repeatability, not measured
            return x * 1
        self.log.kept = self.log.kept or any(ref() is not None for ref in self.log.inputs)
        self.log.sizes.append(len(x))
        self.log.inputs.append(weakref.ref(x))
        if len(x) > self.most and self.backward is None:
            raise self.error()
        return Fail.apply(x, self.backward if len(x) > self.most else 0, self.error)


@pytest.fixture(autouse=True)
def measured_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-written backward pass that fails; it does not mix images, which no recording can show."""
    monkeypatch.setattr(Recording, "mixed_gradients", "")


def net(narrow: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), narrow, nn.Conv2d(6, 8, 3, 2, 1)]
    return nn.Sequential(*layers).double().eval()


def pictures(n: int) -> Tensor:
    x = torch.randn(n, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x * torch.linspace(0.2, 3, n, dtype=torch.float64).reshape(-1, 1, 1, 1)


def measured(narrow: nn.Module, **options: object) -> list[erfscope.Result]:
    x = pictures(14)
    x[2] = torch.nan
    return list(erfscope.sweep(net(narrow), images=x, unit="grid:2", layer="4", plain=True, **options))


def assert_equal(found: list[erfscope.Result], expected: list[erfscope.Result]) -> None:
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert one.input == other.input
        assert (one.gradient_ratio or 0) == pytest.approx(other.gradient_ratio or 0, rel=1e-12)
        np.testing.assert_allclose(
            one.map.values, other.map.values, rtol=1e-12, atol=1e-12 * np.abs(other.map.values).max()
        )
        for name, value in other.measures.items():
            if value.se is not None and not name.startswith("gaussian"):
                assert one[name].leave_one_out == pytest.approx(value.leave_one_out, rel=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "backward", "more"),
    [
        *((error, None, {}) for error in OUT_OF_MEMORY),
        (OUT_OF_MEMORY[0], 1, {}),
        (OUT_OF_MEMORY[1], 5, {}),
        (OUT_OF_MEMORY[0], 2, {"convention": "luo", "draws": None}),
        (OUT_OF_MEMORY[0], 2, {"convention": "signed", "draws": None}),
        (OUT_OF_MEMORY[0], 2, {"draws": "all"}),
    ],
)
def test_a_batch_that_does_not_fit_is_run_in_smaller_ones_with_the_same_result(error, backward, more):
    """Two draws of each of four units: at the fifth backward pass two units are in the averages already, at the next
    size too."""
    options = {"draws": 2, "batch_size": 12, "measures": "r50,sigma_row", **more}
    expected = measured(Narrow(99, error), **options)
    narrow = Narrow(3, error, backward)
    found = measured(narrow, **options)
    assert narrow.log.sizes == [12, 6, 3, 3, 3, 3, 2]
    assert_equal(found, expected)
    for one, other in zip(found, expected, strict=True):
        assert [w.text for w in one.findings] == [
            *(w.text for w in other.findings),
            "a batch of 12 images did not fit into memory: they were measured 3 at a time",
        ]


@pytest.mark.slow
def test_the_operations_of_a_unit_are_run_in_smaller_batches_too(monkeypatch):
    module, sizes, run = net(nn.Identity()), [], Forward.__call__
    options = {"images": pictures(14), "layer": "4", "measures": "r50,sigma_row", "draws": 2, "batch_size": 12}
    expected = erfscope.analyze(module, **options)

    def narrow(self: Forward, image: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(image))
        if len(image) > 3:
            raise MemoryError
        return run(self, image)

    monkeypatch.setattr(Forward, "__call__", narrow)
    found = erfscope.analyze(module, **options)
    assert sizes == [12, 6, 3, 3, 3, 3, 2]
    np.testing.assert_allclose(found.map.values, expected.map.values, rtol=1e-12, atol=1e-15)
    assert found.findings[-1].text == "a batch of 12 images did not fit into memory: they were measured 3 at a time"


@pytest.mark.slow
@pytest.mark.parametrize("backward", [None, 5])
def test_a_graph_that_did_not_fit_is_gone_before_the_next_try(backward):
    narrow = Narrow(3, OUT_OF_MEMORY[0], backward)
    gc.collect()
    gc.disable()
    try:
        measured(narrow, draws=2, batch_size=12, measures="r50")
    finally:
        gc.enable()
    assert len(narrow.log.sizes) > 3
    assert not narrow.log.kept


@pytest.mark.slow
def test_where_a_run_stops_does_not_depend_on_halving():
    options = {
        "input_size": (24, 24),
        "synthetic": "noise",
        "measures": "r50",
        "batch_size": 8,
        "until_se": 0.05,
        "plain": True,
    }
    results = [erfscope.analyze(net(Narrow(most, OUT_OF_MEMORY[0])), **options) for most in (99, 3)]
    assert 8 <= results[0].input.n_images < 1000
    assert results[0].input == results[1].input


@pytest.mark.slow
def test_an_unreadable_picture_of_a_batch_that_is_tried_again_is_named_once(tmp_path):
    files = [tmp_path / f"{number}.png" for number in range(6)]
    for number, file in enumerate(files):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(file)
    for number in (1, 4):
        files[number].write_bytes(b"no image")
    narrow = Narrow(1, OUT_OF_MEMORY[0])
    options = {"input_size": (24, 24), "measures": "r50", "batch_size": 6, "plain": True}
    result = erfscope.analyze(net(narrow).float(), images=[str(file) for file in files], keep_going=True, **options)
    assert narrow.log.sizes == [4, 2, 1, 1, 1, 1]
    assert (result.input.n_images, result.input.n_dead) == (6, 2)
    assert [w.text.count(".png") for w in result.findings if w.code == "unreadable_images"] == [2]


@pytest.mark.parametrize(
    "text",
    ["boom", "could not create a primitive descriptor for the matmul primitive", ""],
    ids=["boom", "primitive", "-"],
)
def test_one_picture_that_does_not_fit_is_one_clear_line_and_other_failures_are_not_tried_again(text):
    narrow = Narrow(0, (lambda: RuntimeError(text)) if text else OUT_OF_MEMORY[1])
    result = erfscope.analyze(net(narrow), images=pictures(4), measures="r50", plain=True, errors="row")
    assert result.status == "error"
    if text:
        assert narrow.log.sizes == [4]
        assert text in result.error
        assert "memory" not in result.error
    else:
        assert narrow.log.sizes == [4, 2, 1]
        assert "does not fit into memory with one image of 24x24" in result.error
        assert "you tried to allocate 4000 bytes" in result.error
        assert result.error.endswith("use a smaller --input-size")


def test_what_pytorch_and_numpy_raise_is_known():
    for make in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            make()
        assert ran_out(caught.value)


LIMITED = """
import resource
import torch
from torch import nn
import erfscope
import erfscope.core.run.engine.batch
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 4, 3, 4, 1)]
net = nn.Sequential(*layers).double()
x = torch.randn(16, 3, 96, 96, dtype=torch.float64)
options = {"images": x, "measures": "r50", "layer": "4", "plain": True, "batch_size": 16}
expected = erfscope.analyze(net, **{**options, "batch_size": 1})
# Room for some 128 MiB: one image takes about 16.
space = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (space + 2**27, resource.RLIM_INFINITY))
erfscope.core.run.engine.batch.available_bytes = lambda *_: None
found = erfscope.analyze(net, **options)
print(found.findings[-1].text, "|", abs(found.map.values - expected.map.values).max() / expected.map.values.max())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space reliably")
def test_under_a_real_limit_of_memory_the_result_is_the_same():
    done = warm.run([sys.executable, "-c", LIMITED])
    assert done.returncode == 0, done.stderr
    text, difference = done.stdout.strip().split(" | ")
    assert text.startswith("a batch of 16 images did not fit into memory: they were measured")
    assert float(difference) < 1e-12
