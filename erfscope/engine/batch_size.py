"""How many images go through the model at a time: planned from the memory that one takes, before anything large is
allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from erfscope.attribution.captum_parameters import EXTRA_TENSORS, copies
from erfscope.engine.state import Plan
from erfscope.environment import available_bytes
from erfscope.errors import MeasurementError
from erfscope.geometry.box import sides
from erfscope.geometry.names import IMAGE
from erfscope.maps.jackknife import GROUPS

#: What a run takes for each byte that :func:`erfscope.engine.cost.pass_bytes` counts, at most. Measured on the CPU as
#: the growth of the anonymous resident memory over 224 x 224 and 512 x 512: resnet50 1.1 to 1.2, convnext_tiny 1.3 to
#: 1.45, vit_small 1.4 to 1.5; the first pass of a process 1.3 to 1.6. The rest is scratch memory of kernels and holes
#: between blocks of the heap.
OVERHEAD = 1.6
#: Maps of the whole reference, in float64, that measuring one map takes. Measured as the growth of the resident memory:
#: 8 at 4096 x 4096 for the measures alone, 13 at 2048 x 2048 from the plan to the result.
MAPS_TO_MEASURE = 14
#: What the first pass and the first measures of a process take of the machine's own memory whatever their size: code,
#: oneDNN's tables. Measured as that growth at 64 x 64, 15 MiB.
FIRST_PASS = 24 * 2**20
FLOAT64 = 8
#: Images of a batch at most, unless the user names a number. A net of three convolutions takes 0.32 s for 2,000 images
#: of 32 x 32 by 16, and 0.13 s by 256.
MOST_IMAGES = 256
#: Pixels of a batch at most. Twenty images of 224 x 224 take two cores 1.70 s by 10 and 1.85 s by 20 for resnet50, 2.8
#: and 3.0 s for swin_tiny; a graphics processor needs more of them to be busy.
MOST_PIXELS_ON_CPU, MOST_PIXELS = 16 * 224 * 224, 128 * 224 * 224


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a measurement takes in one place, in bytes."""

    there: int
    #: Whatever the batch size.
    fixed: int
    #: For every image of a batch.
    each: int
    #: After the last batch, when the maps are measured.
    after: int = 0

    def takes(self, pictures: int) -> int:
        """At most, with batches of this size."""
        return max(self.fixed + pictures * self.each, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How many images go through the model together: as planned, and as many as fit into memory, which is stated by its
    places."""

    planned: int
    batch_size: int
    needs: tuple[Need, ...]


def plan_batches(plan: Plan) -> BatchPlan:
    """Decide how many images go through the model at a time; Captum's methods take one by one.

    The user's number, halved until it fits; else images of at most :data:`MOST_PIXELS` pixels, and at most
    :data:`MOST_IMAGES`, in at most half of the memory there is. Only the pixels that go in count.

    Raises:
        MeasurementError: there is no memory for a single image.
    """
    asked = plan.settings.batch_size
    most = MOST_PIXELS_ON_CPU if device_and_dtype(plan)[0].type == "cpu" else MOST_PIXELS
    planned = batch_size = min(largest_batch(plan), asked or max(1, min(MOST_IMAGES, most // max(_pixels(plan), 1))))
    wanted = tuple(needs(plan))
    for need in wanted:
        if need.takes(1) > need.there:
            size = "x".join(map(str, plan.model.adapter.preprocess.size))
            text = f"one image of {size} needs about {gib(need.takes(1))} of memory, but there are {gib(need.there)}"
            raise MeasurementError(f"{text}; use a smaller --input-size")
        if asked is None:
            planned = batch_size = max(1, min(planned, (need.there - need.fixed) // 2 // need.each))
        while need.takes(batch_size) > need.there and batch_size > 1:
            batch_size //= 2
    if asked is None:
        # Batches of one size: 10 and 10 rather than 16 and 4.
        count = max(1, len(plan.indices))
        planned, batch_size = (math.ceil(count / math.ceil(count / size)) for size in (planned, batch_size))
    return BatchPlan(planned=planned, batch_size=batch_size, needs=wanted)


def largest_batch(plan: Plan) -> int:
    """Images that may go through the model at a time as far as its recorded pass tells, whatever the memory and the
    settings."""
    if plan.settings.method != "gradient" or not plan.model.takes_batches(plan.layer):
        return 1
    return min(len(plan.indices), plan.model.adapter.most_images or len(plan.indices))


def needs(plan: Plan) -> list[Need]:
    """The memory that a measurement takes on the model's device and of the machine's own; empty where that is unknown.

    Args:
        plan: What is measured.

    Autocast keeps less than that; how much less is not counted.
    """
    device, dtype = device_and_dtype(plan)
    counted = plan.pass_bytes
    channels, size = plan.model.adapter.preprocess.channels, plan.model.adapter.preprocess.size
    # The part of an image that all units need lies there twice while a batch is put together.
    inputs = 2 * dtype.itemsize * channels * math.prod(size if plan.box is None else sides(plan.box))
    method = plan.settings.method
    extra = EXTRA_TENSORS.get(method, 0) if isinstance(method, str) else 0
    model = math.ceil(OVERHEAD * (counted + extra * inputs // 2)) * copies(method, math.prod(size)) + inputs
    # The image itself is made whole, one at a time; the draws of one image are averaged, one at a time.
    drawn = FLOAT64 * (1 if plan.draws == "all" else plan.draws) * _cells(plan)
    fixed = FIRST_PASS + _averages(plan) + max(plan.feed.value_bytes * math.prod(size) * channels, drawn)
    there, after = available_bytes(device), _measuring(plan)
    if device.type == "cpu":
        # The heap may keep what the last pass took.
        return [] if there is None else [Need(there, fixed, model + drawn, after + model)]
    own = available_bytes()
    # The sums are there, and once more when they come back together.
    return [
        *([] if there is None else [Need(there, 2 * _averages(plan), model + drawn)]),
        *([] if own is None else [Need(own, fixed, drawn, after)]),
    ]


def estimate(plan: Plan, wanted: Sequence[Need], batch_size: int) -> str:
    """Say how much memory a measurement will take with this many images at a time."""
    text = f"{len(plan.indices)} image{'s' * (len(plan.indices) != 1)}, {batch_size} at a time"
    wants = [f"{gib(need.takes(batch_size))} of the {gib(need.there)} that are free" for need in wanted]
    if not wants:
        return f"{text}; how much memory that takes is not known"
    places = ["in memory"] if len(wants) == 1 else [f"on {device_and_dtype(plan)[0].type}", "in memory"]
    return f"{text}, will take about " + " and ".join(
        f"{want} {place}" for want, place in zip(wants, places, strict=False)
    )


def lacks_for_double(plan: Plan, counted: int) -> str:
    """How much memory a pass of a copy of the model in float64 needs and there is, as text; "" where that is enough,
    or not known.

    Args:
        plan: What is measured.
        counted: Bytes that the pass takes in the model's own type.
    """
    device, dtype = device_and_dtype(plan)
    there = available_bytes(device)
    if there is None:
        return ""
    model = sum(p.numel() * (p.itemsize + FLOAT64) for p in plan.model.adapter.module.parameters())
    needed = math.ceil(OVERHEAD * counted * FLOAT64 / dtype.itemsize) + model
    return f"about {gib(needed)} of memory, but there are {gib(there)}" if needed > there else ""


def _pixels(plan: Plan) -> int:
    """Pixels of the largest part of an image that goes through the model."""
    return max(
        (math.prod(sides(crop.image)) for crop in plan.crops),
        default=math.prod(plan.model.adapter.preprocess.size),
    )


def _cells(plan: Plan) -> int:
    """Cells of the map of one draw."""
    if plan.settings.wrt == IMAGE:
        return _pixels(plan)
    return max(math.prod(trf.reference_px) for trf in plan.trfs)


def _averages(plan: Plan) -> int:
    """Bytes of the sums over images or draws, by group."""
    members = plan.feed.n if plan.feed.n > 1 or plan.draws == "all" else plan.draws
    cells = sum(math.prod(last - first + 1 for first, last in trf.clipped_box_px) for trf in plan.trfs)
    return FLOAT64 * min(GROUPS, members) * cells


def _measuring(plan: Plan) -> int:
    """Bytes taken when the maps are measured, one after the other, after the last pass."""
    return (
        FIRST_PASS + _averages(plan) + FLOAT64 * MAPS_TO_MEASURE * max(math.prod(trf.reference_px) for trf in plan.trfs)
    )


def gib(count: int) -> str:
    """Format a number of bytes."""
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def device_and_dtype(plan: Plan) -> tuple[torch.device, torch.dtype]:
    """Where inputs must lie, and in which dtype: the model's own."""
    parameter = next((p for p in plan.model.adapter.module.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return torch.device("cpu"), getattr(torch, plan.settings.dtype)
    return parameter.device, parameter.dtype
