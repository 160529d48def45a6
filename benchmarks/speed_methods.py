"""The methods that `speed.py` compares, each from a normalised tensor to a map, and the memory that one call of each
takes."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from captum.attr import NeuronGradient
from numpy.typing import NDArray
from torch import Tensor

from erfscope import ErfscopeError, Result
from erfscope.adapters import load
from erfscope.core import FloatArray, OpenModel
from erfscope.core.images import synthetic
from erfscope.core.images.feed import TensorImages
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.measure import measure_units
from erfscope.core.run.engine.plan import NO_CALLBACKS, Callbacks

HAS_OPENERF = find_spec("openerf") is not None
if HAS_OPENERF:
    import openerf.erf

T = TypeVar("T")


#: The convention of the RepLKNet procedure; `coverage` because it is the cheapest measure, which is not timed.
SETTINGS = Settings(convention="replknet", draws=1, batch_size=1, measures=("coverage",))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model at one input size, and its input (1, 3, size, size)."""

    loaded: OpenModel
    x: Tensor

    @property
    def net(self) -> Any:
        """The module that all methods run."""
        return self.loaded.adapter.module


@dataclass
class Place:
    """Where everything is computed."""

    device: torch.device

    def wait(self) -> None:
        """Until what was asked of it is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


PLACE = Place(torch.device("cpu"))


@cache
def pixels(size: int) -> NDArray[np.uint8]:
    """The one image, (1, size, size, 3)."""
    return synthetic("leaves", samples=1, seed=0, size=(size, size), channels=3).pixels(0)[None]


def opened(model: str, size: int, dtype: torch.dtype = torch.float32) -> Case:
    """A model as ``--weights random`` makes it."""
    adapter = load(model, weights="random", seed=0, input_size=(size, size)).to(device=PLACE.device, dtype=dtype)
    adapter.module.eval()
    return Case(
        loaded=OpenModel(adapter=adapter, label=model),
        x=adapter.preprocess.normalise(pixels(size)).to(PLACE.device, dtype),
    )


def differentiable(x: Tensor) -> Tensor:
    """The same numbers as a leaf, not copied."""
    return x.detach().requires_grad_(True)


def positive(g: Tensor) -> FloatArray:
    """Gradient (1, 3, H, W) -> map (H, W)."""
    return g.relu().sum((0, 1)).double().cpu().numpy()


def replknet(case: Case) -> FloatArray:
    """The gradient of sum_c relu(y_c) at the central unit, positive part, summed over colours. Parameters are in the
    graph as they are."""
    x, last = differentiable(case.x), len(case.net.feature_info) - 1
    y = case.net.forward_intermediates(x, indices=[last], norm=False, stop_early=True, intermediates_only=True)[0]
    scalar = y[:, :, y.shape[2] // 2, y.shape[3] // 2].relu().sum()
    return positive(torch.autograd.grad(scalar, x)[0])


def captum(case: Case) -> FloatArray:
    """The same readout as the selector of a neuron in the last stage's own layout."""
    prefix, is_last = getattr(case.net, "num_prefix_tokens", 0), getattr(case.net, "output_fmt", "") == "NHWC"

    def central(y: Tensor) -> Tensor:
        if y.ndim == 3:
            side = isqrt(y.shape[1] - prefix)
            y = y[:, prefix + side // 2 * (side + 1)]
        else:
            y = y[:, y.shape[1] // 2, y.shape[2] // 2] if is_last else y[:, :, y.shape[2] // 2, y.shape[3] // 2]
        return y.relu().sum(1)

    layer = case.net.get_submodule(case.loaded.default_layer)
    return positive(NeuronGradient(case.net, layer).attribute(differentiable(case.x), central))


def openerf_map(case: Case) -> FloatArray:
    """OpenERF's loop over one image, with its own choice of layer for timm models: forward_features."""
    ready: dict[str, Any] = {
        "FlatImageDataset": lambda **_: [(case.x[0], "")],
        "build_timm_eval_transform": lambda _: (None, {}),
    }
    with mock.patch.multiple(openerf.erf, **ready):
        found: FloatArray = openerf.erf.compute_erf(case.net, device=str(PLACE.device), show_progress=False).erf_map
    return found


PEERS: dict[str, Callable[[Case], FloatArray]] = {"RepLKNet": replknet, "OpenERF": openerf_map, "Captum": captum}


def timed(work: Callable[[], T]) -> tuple[float, T]:
    PLACE.wait()
    start = time.perf_counter()
    made = work()
    PLACE.wait()
    return time.perf_counter() - start, made


def ours(case: Case, feed: TensorImages, done: Callable[[int, int], None] | None = None) -> Result:
    """erfscope's result; its unit must be the one that the others take."""
    (result,) = measure_units(
        case.loaded, feed, SETTINGS, callbacks=NO_CALLBACKS if done is None else Callbacks(progress=done)
    )
    if result.map is None or result.unit is None:
        raise ErfscopeError(f"{result.label} has no map: {result.error}")
    if result.unit.index != tuple(side // 2 for side in result.unit.map_shape[1:]):
        raise ErfscopeError(f"{result.label} has another central unit, {result.unit.index}")
    return result


def peak_bytes(model: str, size: int, name: str, device: str) -> int:
    """Growth of the peak memory during one call, on a GPU its own, else the anonymous resident one; for a process of
    its own."""
    PLACE.device = torch.device(device)
    run = PEERS.get(name, lambda case: ours(case, TensorImages(case.x)))
    run(opened("resnet18", 64))  # what a process loads only once is not counted
    case = opened(model, size)
    gc.collect()
    if PLACE.device.type == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(case)
        return torch.cuda.max_memory_allocated() - held
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    run(case)
    after = resident()
    return after["VmHWM"] - before["VmRSS"] - (after["RssFile"] - before["RssFile"])


def resident() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words and words[-1] == "kB"}


def in_own_process(work: Callable[..., int], *arguments: Any) -> int:
    """Forked from a server that has imported everything and run nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["captum.attr", "openerf.erf", "erfscope.adapters", "erfscope.core.run.engine.measure"]
    )
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return pool.submit(work, *arguments).result()
