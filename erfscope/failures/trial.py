"""Running a model on other inputs than it failed on, to find one that it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapter import Adapter
from erfscope.failures.plain import plain_line, understand

#: Multiples that patches, windows and strides ask for.
_MULTIPLES = (8, 14, 16, 32, 64)
#: Sides that models are built for, by the number of axes.
_LENGTHS = (224, 256, 512, 1024, 2048, 4096, 8192, 16000)
_SIDES = (224, 256, 384, 32, 28, 64, 128, 96, 299, 512, 518)
_CLIPS = ((16, 112, 112), (16, 224, 224), (8, 224, 224), (32, 224, 224), (8, 112, 112), (4, 224, 224))
_CUBES = (64, 96, 128, 32)
#: How many sizes are tried.
_MOST = 24
#: How often a size is corrected, and the longest side that may come of it.
_STEPS, _LONGEST = 5, 1 << 20


class Unbatched(Exception):
    """A convolution was given an input without a batch axis: it took channels for images."""


def failure_at(
    adapter: Adapter, space: Sequence[int], *, channels: int | None = None, numbers: bool = False, meta: Adapter | None = None
) -> BaseException | None:
    """What a model raises on an input of a size; None where it takes it.

    Args:
        adapter: The model.
        space: Spatial size of the input.
        channels: Of the input; the adapter's own if None.
        numbers: Run it on zeros on its own device where it cannot run on the meta device.
        meta: :func:`without_numbers` of it, where the caller has it.

    Returns:
        The exception, which may mean no more than that the model needs numbers (:attr:`erfscope.failures.plain.Failure.needs_numbers`).
    """
    meta = meta or without_numbers(adapter)
    first = next((p for p in adapter.module.parameters() if p.is_floating_point()), None)
    shape = (1, channels or adapter.preprocess.channels, *space)
    if meta is None:
        error: BaseException | None = NotImplementedError("data-dependent: the model cannot be copied")
    else:
        error = _run_failure(meta, torch.empty(shape, device="meta", dtype=None if first is None else first.dtype))
    device = "cpu" if first is None else first.device
    if error is None or not numbers or str(device) == "meta" or not understand(error).needs_numbers:
        return error
    return _run_failure(adapter, torch.zeros(shape, device=device, dtype=None if first is None else first.dtype))


def without_numbers(adapter: Adapter) -> Adapter | None:
    """A copy of a model on the meta device; None for one that cannot be copied."""
    try:
        return adapter.on_meta()
    except Exception:  # what a module holds may refuse to be copied in any way
        return None


def size_that_runs(adapter: Adapter, error: BaseException | None = None, *, numbers: bool = False) -> tuple[int, ...] | None:
    """An input size that a model takes, found by running it without numbers.

    Args:
        adapter: The model; its own size is not tried.
        error: What it raised at that size, whose numbers may say which size is wanted.
        numbers: Run it on zeros at the two likeliest sizes instead, since it cannot run on the meta device.

    Returns:
        A size near the adapter's own where one is found; None where none is, or the model would need numbers.
    """
    likely = candidates(adapter.module, adapter.preprocess.size, "" if error is None else str(error))
    if numbers:
        return next((space for space in likely[:2] if failure_at(adapter, space, numbers=True) is None), None)
    meta = without_numbers(adapter)
    if meta is None:
        return None
    if error is not None and (fitted := _fit_size(adapter, meta, error)) is not None:
        return fitted
    for space in likely:
        raised = failure_at(adapter, space, meta=meta)
        if raised is None:
            return space
        if understand(raised).needs_numbers:
            return None
    return None


def _fit_size(adapter: Adapter, meta: Adapter, error: BaseException) -> tuple[int, ...] | None:
    """The size at which a layer behind the map gets as many features as it wants, by the ratio of the two numbers, a few times over."""
    size = adapter.preprocess.size
    raised: BaseException | None = error
    for _ in range(_STEPS):
        found = re.search(r"\(\d+x(\d+) and (\d+)x\d+\)", "" if raised is None else plain_line(raised))
        if found is None:
            return None
        size = tuple(max(1, round(side * (int(found[2]) / int(found[1])) ** (1 / len(size)))) for side in size)
        if max(size) > _LONGEST:
            return None
        raised = failure_at(adapter, size, meta=meta)
        if raised is None:
            return size
    return None


#: Other orders of an input's axes that models take: tokens before channels, samples without channels, frames before channels.
_ORDERS: dict[int, dict[str, Callable[[Tensor], Tensor]]] = {
    1: {"x.mT": lambda x: x.mT, "x[:, 0]": lambda x: x[:, 0]},
    3: {"x.transpose(1, 2)": lambda x: x.transpose(1, 2)},
}


def order_that_runs(adapter: Adapter, sizes: Sequence[tuple[int, ...]], channels: Sequence[int]) -> tuple[str, tuple[int, ...], int] | None:
    """Another order of the input's axes in which a model takes it.

    Args:
        adapter: The model; it fails on (B, C, *space) at each of these.
        sizes: Spatial sizes to try.
        channels: Numbers of channels to try.

    Returns:
        The order in Python, the size and the channels; None where none runs, or the model cannot run on the meta device.
    """
    meta = without_numbers(adapter)
    if meta is None:
        return None
    plain = meta.module
    for size, wanted in product(sizes, channels):
        for code, order in _ORDERS.get(len(size), {}).items():
            if code == "x[:, 0]" and wanted != 1:
                continue
            meta.module = _Ordered(plain, order)
            if failure_at(adapter, size, channels=wanted, meta=meta) is None:
                return code, size, wanted
    return None


class _Ordered(nn.Module):
    """A model that is given its input in another order of the axes."""

    def __init__(self, module: nn.Module, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.order = module, order

    def forward(self, x: Tensor) -> Any:
        return self.module(self.order(x))


def candidates(module: nn.Module, asked: Sequence[int], text: str = "") -> list[tuple[int, ...]]:
    """Input sizes worth trying, the likeliest first.

    Args:
        module: Its first convolution says how many axes the input has, and its configuration which size it was built for.
        asked: The size that failed.
        text: What was raised then.
    """
    first = first_convolution(module)
    rank = len(asked) if first is None else len(first.kernel_size)
    same = rank == len(asked)
    found: list[tuple[int, ...]] = []
    found += [size for size in _stated_sizes(module) if len(size) == rank]
    if same:
        found += _scaled_sizes(asked, text)
        found += [tuple(-(-side // of) * of for side in asked) for of in _MULTIPLES]
    clips = [*_CLIPS] if first is None or first.in_channels == 3 else []
    found += clips if rank == 3 else []
    found += [(side,) * rank for side in (_LENGTHS, _SIDES, _CUBES)[rank - 1]]
    if rank == 3 and not clips:
        found += _CLIPS
    least = (1,) * rank if first is None else first.kernel_size
    fit = [size for size in found if all(side >= low for side, low in zip(size, least, strict=True))]
    return [size for size in dict.fromkeys(fit) if size != tuple(asked)][:_MOST]


def first_convolution(module: nn.Module) -> nn.Conv1d | nn.Conv2d | nn.Conv3d | None:
    """The first convolution of a module in the order of its parts."""
    return next((part for part in module.modules() if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)


def _run_failure(adapter: Adapter, x: Tensor) -> BaseException | None:
    """What a forward pass raises, an input without a batch axis to a convolution included."""

    def refuse_unbatched(part: nn.Module, given: tuple[object, ...]) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            wanted = len(part.kernel_size) + 2
            if given[0].dim() != wanted:
                raise Unbatched(f"{type(part).__name__} wants an input of {wanted} axes and gets {tuple(given[0].shape)}")

    handles = [part.register_forward_pre_hook(refuse_unbatched) for part in adapter.module.modules()]
    try:
        adapter.visit(x, lambda *_args, **_named: None)
    except Exception as error:  # a model may fail in any way
        return error
    finally:
        for handle in handles:
            handle.remove()
    return None


def _stated_sizes(module: nn.Module) -> Iterator[tuple[int, ...]]:
    """Sizes that a model states itself: timm's and transformers' configurations."""
    built = getattr(getattr(module, "patch_embed", None), "img_size", None)
    stated = getattr(module, "pretrained_cfg", None)
    config = getattr(module, "config", None)
    config = getattr(config, "vision_config", None) or config
    side, frames = getattr(config, "image_size", None), getattr(config, "num_frames", None)
    sides = (side, side) if isinstance(side, int) else side
    known = [built, stated.get("input_size", ())[1:] if isinstance(stated, dict) else None, sides]
    if isinstance(sides, tuple | list) and isinstance(frames, int):
        known.append((frames, *sides))
    for size in known:
        if isinstance(size, tuple | list) and size and all(isinstance(each, int) and each > 0 for each in size):
            yield tuple(size)


def _scaled_sizes(asked: Sequence[int], text: str) -> Iterator[tuple[int, ...]]:
    """The size asked for, scaled by the ratio of two numbers in a text: 4096 features where 1024 are wanted mean half the side."""
    numbers = [int(number) for number in re.findall(r"\d+", text)][:8]
    pairs = [(a, b) for a in numbers for b in numbers if a != b and min(a, b) > 1]
    for a, b in dict.fromkeys(pairs):
        size = tuple(round(side * (a / b) ** (1 / len(asked))) for side in asked)
        if math.prod(size) > 0 and max(size) <= 8 * max(asked):
            yield size
