"""How many pictures go through the model at a time: planned from the memory that one takes, before anything large is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from erfscope.adapter import IMAGE
from erfscope.engine.memory import OVERHEAD, measured_bytes
from erfscope.engine.run import Run
from erfscope.environment import available_bytes
from erfscope.errors import EnvironmentFailure
from erfscope.geometry.box import sides
from erfscope.maps.jackknife import GROUPS

#: Maps of the whole reference, in float64, that measuring one map takes. Measured as the growth of the resident memory: 8 at 4096 x 4096
#: for the measures alone, 13 at 2048 x 2048 from the plan to the result.
MAPS_TO_MEASURE = 14
#: What the first pass and the first measures of a process take of the machine's own memory whatever their size: code, oneDNN's tables.
#: Measured as that growth at 64 x 64, 15 MiB.
FIRST_PASS = 24 * 2**20
FLOAT64 = 8


@dataclass(frozen=True, slots=True)
class Need:
    """What a measurement takes of the memory in one place, in bytes."""

    there: int
    #: Whatever the batch size.
    fixed: int
    #: For every picture of a batch.
    each: int
    #: After the last batch, when the maps are measured.
    after: int = 0

    def takes(self, pictures: int) -> int:
        """At most, with batches of this size."""
        return max(self.fixed + pictures * self.each, self.after)


def plan_batches(run: Run) -> None:
    """Decide how many pictures go through the model at a time, and write it into ``run``; Captum's methods take one by one.

    The user's number, halved until it fits; else about as many pixels as sixteen pictures of 224 x 224 have, in at most half of the memory
    there is. Only the pixels that go in count.

    Raises:
        EnvironmentFailure: there is no memory for a single picture.
    """
    asked = run.settings.batch_size
    run.planned = run.at_once = min(most_at_once(run), asked or max(1, min(16, 16 * 224 * 224 // max(_pixels(run), 1))))
    for need in needs(run, run.settings.amp_dtype):
        if need.takes(1) > need.there:
            size = "x".join(map(str, run.subject.adapter.preprocess.size))
            text = f"one picture of {size} needs about {gib(need.takes(1))} of memory, but there are {gib(need.there)}"
            raise EnvironmentFailure(f"{text}; use a smaller --input-size")
        if asked is None:
            run.planned = run.at_once = max(1, min(run.planned, (need.there - need.fixed) // 2 // need.each))
        while need.takes(run.at_once) > need.there and run.at_once > 1:
            run.at_once //= 2


def most_at_once(run: Run) -> int:
    """Pictures that may go through the model at a time as far as its recorded pass tells, whatever the memory and the settings."""
    if run.settings.method != "gradient" or run.subject.sees_batch(run.layer) or run.subject.needed_numbers is not None:
        return 1
    if run.subject.mixes_gradients(run.layer, run.settings.wrt):
        return 1
    # An exported program may take a fixed number of pictures.
    return min(len(run.indices), getattr(run.subject.adapter, "at_once", None) or len(run.indices))


def needs(run: Run, amp_dtype: str | None) -> list[Need]:
    """What the measurement takes where the model lies, and in the machine's own memory; empty where that is not known.

    Args:
        run: What is asked.
        amp_dtype: Autocast dtype of the forward pass.
    """
    device, dtype = device_and_dtype(run)
    cone = max(run.cones, key=lambda each: each.gmacs) if run.cones else None
    amp = getattr(torch, amp_dtype) if amp_dtype else None
    counted = run.subject.sample_bytes(run.layer, run.settings.wrt, device=device, dtype=dtype, amp_dtype=amp, cone=cone)
    if not counted and run.subject.needed_numbers is not None:
        # Its fields come from a pass on a real picture, so that there was memory for one.
        known = run.subject.recording.layouts(run.layer, run.settings.wrt)
        counted = measured_bytes(run.subject.adapter, run.layer, run.settings.wrt, device=device, dtype=dtype, known=known)
    if not counted:
        return []
    channels, size = run.subject.adapter.preprocess.channels, run.subject.adapter.preprocess.size
    # The part of a picture that all units need lies there twice while a batch is put together.
    inputs = 2 * dtype.itemsize * channels * math.prod(size if run.box is None else sides(run.box))
    copies, beside = _at_once(run)
    model = math.ceil(OVERHEAD * (counted + beside * inputs // 2)) * copies + inputs
    # The picture itself is made whole, one at a time; the draws of one picture are averaged, one at a time.
    drawn = FLOAT64 * (1 if run.draws == "all" else run.draws) * _cells(run)
    fixed = FIRST_PASS + _averages(run) + max(run.feed.value_bytes * math.prod(size) * channels, drawn)
    there, after = available_bytes(device), _measuring(run)
    if device.type == "cpu":
        # The heap may keep what the last pass took.
        return [] if there is None else [Need(there, fixed, model + drawn, after + model)]
    own = available_bytes()
    return [*([] if there is None else [Need(there, 0, model)]), *([] if own is None else [Need(own, fixed, drawn, after)])]


def estimate(run: Run) -> str:
    """What a planned measurement will take, in words."""
    text = f"{len(run.indices)} picture{'s' * (len(run.indices) != 1)}, {run.at_once} at a time"
    wants = [f"{gib(need.takes(run.at_once))} of the {gib(need.there)} that are free" for need in needs(run, run.settings.amp_dtype)]
    if not wants:
        return f"{text}; how much memory that takes is not known"
    places = ["in memory"] if len(wants) == 1 else [f"on {device_and_dtype(run)[0].type}", "in memory"]
    return f"{text}, will take about " + " and ".join(f"{want} {place}" for want, place in zip(wants, places, strict=False))


def check_comparison(run: Run) -> None:
    """See that a cone can be compared with the whole pass in float64.

    Raises:
        EnvironmentFailure: there is no memory for that.
    """
    device, dtype = device_and_dtype(run)
    whole = run.subject.cones(run.layer, run.units, run.settings.wrt, crop=False)
    cone = whole[0] if whole else None
    counted = run.subject.sample_bytes(run.layer, run.settings.wrt, device=device, dtype=dtype, amp_dtype=None, cone=cone)
    there = available_bytes(device)
    if not counted or there is None:
        return
    model = sum(p.numel() * (p.itemsize + FLOAT64) for p in run.subject.adapter.module.parameters())
    needed = math.ceil(OVERHEAD * counted * FLOAT64 / dtype.itemsize) + model
    if needed > there:
        text = f"a comparison with the whole pass in float64 needs about {gib(needed)} of memory, but there are {gib(there)}"
        raise EnvironmentFailure(f"{text}; use a smaller --input-size, or leave --verify-cone out")


def _pixels(run: Run) -> int:
    """Pixels of the largest part of a picture that goes through the model."""
    return max((math.prod(sides(cone.image)) for cone in run.cones or ()), default=math.prod(run.subject.adapter.preprocess.size))


def _cells(run: Run) -> int:
    """Cells of the map of one draw."""
    if run.settings.wrt == IMAGE:
        return _pixels(run)
    return max(math.prod(trf.reference_px) for trf in run.trfs)


def _averages(run: Run) -> int:
    """Bytes of the sums over pictures or draws, by group."""
    return sum(FLOAT64 * _groups(run) * math.prod(last - first + 1 for first, last in trf.clipped_box_px) for trf in run.trfs)


def _measuring(run: Run) -> int:
    """Bytes taken when the maps are measured, one after the other, after the last pass."""
    return FIRST_PASS + _averages(run) + FLOAT64 * MAPS_TO_MEASURE * max(math.prod(trf.reference_px) for trf in run.trfs)


def _groups(run: Run) -> int:
    members = run.feed.n if run.feed.n > 1 or run.draws == "all" else run.draws
    return min(GROUPS, members)


def _at_once(run: Run) -> tuple[int, int]:
    """How many copies of one picture a method runs together, and how many tensors of its size it makes itself for each of them."""
    if run.settings.method == "gradient":
        return 1, 0
    from erfscope.attribution.captum_methods import BESIDE, copies

    method = run.settings.method
    return copies(method, math.prod(run.subject.adapter.preprocess.size)), BESIDE.get(method, 0) if isinstance(method, str) else 0


def gib(count: int) -> str:
    """A number of bytes in words."""
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def device_and_dtype(run: Run) -> tuple[torch.device, torch.dtype]:
    """Where inputs must lie, and in which dtype: the model's own."""
    parameter = next((p for p in run.subject.adapter.module.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return torch.device("cpu"), getattr(torch, run.settings.dtype)
    return parameter.device, parameter.dtype
