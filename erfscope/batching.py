"""How many pictures go through the model at a time: planned from the memory that one takes, before anything large is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from erfscope.box import sides
from erfscope.conclusion import Run
from erfscope.errors import MeasurementError
from erfscope.memory import OVERHEAD, available_bytes


def batches(run: Run) -> Iterator[Sequence[int]]:
    """Indices, batch by batch."""
    size = _batch_size(run)
    for start in range(0, run.feed.n, size):
        yield range(start, min(start + size, run.feed.n))


def _batch_size(run: Run) -> int:
    """How many pictures go through the model at a time; Captum's methods take one by one.

    The user's number, else about as many pixels as sixteen pictures of 224 x 224 have, in at most half of the memory there is. Only the
    pixels that go in count.

    Raises:
        MeasurementError: there is no memory for a single picture, or for a batch of the user's size.
    """
    size = run.subject.adapter.preprocess.size
    cone = max(run.cones, key=lambda each: each.gmacs) if run.cones else None
    pixels = math.prod(size if cone is None else sides(cone.image))
    asked = run.settings.batch_size if run.settings.method == "gradient" else 1
    wanted = min(run.feed.n, asked or max(1, min(16, 16 * 224 * 224 // max(pixels, 1))))
    device, dtype = home(run)
    amp = getattr(torch, run.settings.amp_dtype) if run.settings.amp_dtype else None
    there = available_bytes(device)
    counted = run.subject.sample_bytes(run.layer, run.settings.wrt, device=device, dtype=dtype, amp_dtype=amp, cone=cone)
    if there is None or not counted:
        return wanted
    each = math.ceil(OVERHEAD * counted)
    # The picture itself is made whole, one at a time.
    picture = run.feed.value_bytes * math.prod(size) * run.subject.adapter.preprocess.channels
    text = f"of {'x'.join(map(str, size))} needs about {{}} of memory, but there are {_gib(there)}; use a smaller"
    if picture + each > there:
        raise MeasurementError(f"one picture {text.format(_gib(picture + each))} --input-size")
    if asked is not None and picture + wanted * each > there:
        most, needed = (there - picture) // each, picture + wanted * each
        raise MeasurementError(f"a batch of {wanted} pictures {text.format(_gib(needed))} --batch-size, {most} at most")
    return wanted if asked is not None else max(1, min(wanted, (there - picture) // 2 // each))


def _gib(count: int) -> str:
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def home(run: Run) -> tuple[torch.device, torch.dtype]:
    """Where inputs must lie, and in which dtype: the model's own."""
    parameter = next((p for p in run.subject.adapter.module.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return torch.device("cpu"), getattr(torch, run.settings.dtype)
    return parameter.device, parameter.dtype
