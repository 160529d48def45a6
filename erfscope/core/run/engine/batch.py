"""One batch of images through the model and into the averages, and how many images that is: planned from the memory
that one takes, and halved where it runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from erfscope.core.answer.maps.accumulator import GROUPS
from erfscope.core.request.settings import by_removal
from erfscope.core.run.attribution.captum_parameters import EXTRA_TENSORS, copies
from erfscope.core.run.attribution.gradient import Contribution, of_units
from erfscope.core.run.attribution.node_removal import removal_draws
from erfscope.core.run.engine.plan import Plan, Source, Sums
from erfscope.core.run.engine.shared_run import SharedRun
from erfscope.core.system.environment import available_bytes, ran_out
from erfscope.core.system.model_errors import model_failed
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import sides

#: What a run takes for each byte that :func:`erfscope.core.run.engine.cost.pass_bytes` counts, at most. Measured on the
#: CPU as the growth of the anonymous resident memory over 224 x 224 and 512 x 512: resnet50 1.1 to 1.2, convnext_tiny
#: 1.3 to 1.45, vit_small 1.4 to 1.5; the first pass of a process 1.3 to 1.6. The rest is scratch memory of kernels and
#: holes between blocks of the heap.
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
#: and 3.0 s for swin_tiny. On a graphics processor a pass of one image takes about as long as of ten (not measured).
MOST_PIXELS_ON_CPU, MOST_PIXELS = 16 * 224 * 224, 128 * 224 * 224


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a measurement takes in one place, in bytes."""

    available: int
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


def plan_batches(run: SharedRun) -> BatchPlan:
    """Decide how many images go through the model at a time; Captum's methods take one by one.

    The user's number, halved until it fits; else images of at most :data:`MOST_PIXELS` pixels, and at most
    :data:`MOST_IMAGES`, in at most half of the memory there is. Only the pixels that go in count.

    Raises:
        MeasurementError: there is no memory for a single image.
    """
    asked = run.settings.batch_size
    most = MOST_PIXELS_ON_CPU if device_and_dtype(run.plans[0])[0].type == "cpu" else MOST_PIXELS
    planned = batch_size = min(largest_batch(run), asked or max(1, min(MOST_IMAGES, most // max(_pixels(run), 1))))
    wanted = tuple(needs(run))
    for need in wanted:
        if need.takes(1) > need.available:
            size = "x".join(map(str, run.model.adapter.preprocess.size))
            text = (
                f"one image of {size} needs about {gib(need.takes(1))} of memory, but there are {gib(need.available)}"
            )
            raise MeasurementError(f"{text}; use a smaller --input-size")
        if asked is None:
            planned = batch_size = max(1, min(planned, (need.available - need.fixed) // 2 // need.each))
        while need.takes(batch_size) > need.available and batch_size > 1:
            batch_size //= 2
    if asked is None:
        # Batches of one size: 10 and 10 rather than 16 and 4.
        count = max(1, len(run.indices))
        planned, batch_size = (math.ceil(count / math.ceil(count / size)) for size in (planned, batch_size))
    return BatchPlan(planned=planned, batch_size=batch_size, needs=wanted)


def largest_batch(run: SharedRun) -> int:
    """Images that may go through the model at a time as far as its recorded pass tells, whatever the memory and the
    settings."""
    if run.settings.method != "gradient" or not all(plan.site.takes_batches for plan in run.plans):
        return 1
    return min(len(run.indices), run.model.adapter.most_images or len(run.indices))


def needs(run: SharedRun) -> list[Need]:
    """The memory that a measurement takes on the model's device and of the machine's own; empty where that is unknown.

    Args:
        run: What is measured.

    Autocast keeps less than that; how much less is not counted.
    """
    device, dtype = device_and_dtype(run.plans[0])
    counted = run.pass_bytes
    channels, size = run.model.adapter.preprocess.channels, run.model.adapter.preprocess.size
    # The part of an image that all units need lies there twice while a batch is put together.
    inputs = 2 * dtype.itemsize * channels * math.prod(size if run.box is None else sides(run.box))
    method = run.settings.method
    extra = EXTRA_TENSORS.get(method, 0) if isinstance(method, str) else 0
    model = math.ceil(OVERHEAD * (counted + extra * inputs // 2)) * copies(method, math.prod(size)) + inputs
    # The image itself is made whole, one at a time; the draws of one image are averaged, one at a time.
    drawn = FLOAT64 * max(map(_draws, run.plans)) * _cells(run)
    fixed = FIRST_PASS + _averages(run) + max(run.feed.value_bytes * math.prod(size) * channels, drawn)
    there, after = available_bytes(device), _measuring(run)
    if device.type == "cpu":
        # The heap may keep what the last pass took.
        return [] if there is None else [Need(there, fixed, model + drawn, after + model)]
    own = available_bytes()
    # The sums are there, and once more when they come back together.
    return [
        *([] if there is None else [Need(there, 2 * _averages(run), model + drawn)]),
        *([] if own is None else [Need(own, fixed, drawn, after)]),
    ]


def estimate(run: SharedRun, wanted: Sequence[Need], batch_size: int) -> str:
    """Say how much memory a measurement will take with this many images at a time."""
    text = f"{len(run.indices)} image{'s' * (len(run.indices) != 1)}, {batch_size} at a time"
    wants = [f"{gib(need.takes(batch_size))} of the {gib(need.available)} that are free" for need in wanted]
    if not wants:
        return f"{text}; how much memory that takes is not known"
    places = ["in memory"] if len(wants) == 1 else [f"on {device_and_dtype(run.plans[0])[0].type}", "in memory"]
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


def _pixels(run: SharedRun) -> int:
    """Pixels of the largest part of an image that goes through the model."""
    return max(
        (math.prod(sides(crop.image)) for crop in run.crops),
        default=math.prod(run.model.adapter.preprocess.size),
    )


def _cells(run: SharedRun) -> int:
    """Cells of the maps of one draw, one for each reference of a unit."""
    cells = dict[str, int]()
    for plan in run.plans:
        is_image, sizes = plan.site.wrt == IMAGE, (trf.reference_px for trf in plan.trfs)
        cells[plan.site.wrt] = _pixels(run) if is_image else max(map(math.prod, sizes))
    return sum(cells.values())


def _draws(plan: Plan) -> int:
    """Draws of one image that are averaged."""
    return 1 if plan.question.draws == "all" else plan.question.draws


def _averages(run: SharedRun) -> int:
    """Bytes of the sums over images or draws, by group."""
    members = max(run.feed.n, *map(_draws, run.plans))
    cells = sum(math.prod(last - first + 1 for first, last in trf.clipped_box_px) for trf in run.trfs)
    return FLOAT64 * min(GROUPS, members) * cells


def _measuring(run: SharedRun) -> int:
    """Bytes taken when the maps are measured, one after the other, after the last pass."""
    return (
        FIRST_PASS + _averages(run) + FLOAT64 * MAPS_TO_MEASURE * max(math.prod(trf.reference_px) for trf in run.trfs)
    )


def gib(count: int) -> str:
    """Format a number of bytes."""
    size = count / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def device_and_dtype(plan: Plan) -> tuple[torch.device, torch.dtype]:
    """Where inputs must lie, and in which dtype: the model's own."""
    return plan.model.adapter.device, plan.model.adapter.dtype


def accumulate(run: SharedRun, sums: Sums, batch: Sequence[int], read: Source) -> None:
    """Add a batch of images to the averages: together, or in halves, quarters and so on if that does not fit into
    memory.

    What did not fit is not tried again: ``sums.batch_size`` becomes smaller. What was added of it stays, and is passed
    over the next time.

    Args:
        run: What is measured.
        sums: What the batch is added to.
        batch: Indices of images, ascending.
        read: Gives the part of an image that is needed.

    Raises:
        ErfscopeError: an image cannot be read.
        MeasurementError: the model fails, or does not fit into memory with one image.
    """
    done = 0
    while done < len(batch):
        compare = _compares(run, sums)
        part = batch[done : done + (1 if compare else sums.batch_size)]
        try:
            x, images = _load(run, sums, part, read)
            if images:
                every = batch_contributions(run, x, images, most=sums.batch_size, compare=compare)
                for numbers, draws in every:
                    _add(sums, numbers, images, [*draws])
            done += len(part)
        except ErfscopeError:
            raise
        except Exception as error:  # anything a model may raise
            if not ran_out(error) or len(part) == 1:
                raise model_failed(run.model.label, run.model.adapter, error) from error
            sums.batch_size = len(part) // 2
            run.forget_passes()


def _compares(run: SharedRun, sums: Sums) -> bool:
    """Whether the next image is measured alone, with a second backward pass, to tell gradients from rounding noise."""
    return len(sums.ratios) < sum(len(plan.trfs) for plan in run.plans if plan.may_cancel)


def _add(sums: Sums, numbers: Sequence[int], images: list[int], draws: list[list[Contribution]]) -> None:
    """Add the draws of one unit, one by one of its references."""
    for number, found in zip(numbers, zip(*draws, strict=True), strict=True):
        if number not in sums.ratios and (ratio := _ratio(found[0])) is not None:
            sums.ratios[number] = ratio
        sums.running[number].add(images, [draw.maps for draw in found], found[0].origin)


def _load(run: SharedRun, sums: Sums, indices: Sequence[int], read: Source) -> tuple[Tensor, list[int]]:
    """Inputs that can be read, on the model's device, and their indices."""
    device, dtype = device_and_dtype(run.plans[0])
    loaded: list[Tensor] = []
    images: list[int] = []
    for index in indices:
        if index in sums.unreadable:
            continue
        try:
            loaded.append(read(index))
            images.append(index)
        except ErfscopeError:
            if not run.settings.keep_going:
                raise
            sums.unreadable.append(index)
    if not images:
        return torch.empty(0), []
    x = loaded[0] if len(loaded) == 1 else torch.cat(loaded)
    # From pinned memory a copy does not wait for what the device is doing.
    x = x.pin_memory() if device.type == "cuda" else x
    return x.to(device=device, dtype=dtype, non_blocking=True), images


def first_readable(plan: Plan, indices: Sequence[int]) -> tuple[int, Tensor]:
    """Return the first image that can be read, with its index: the whole input (1, C_in, *space) on the CPU.

    Raises:
        ErfscopeError: an image cannot be read, and is not to be passed over.
    """
    for index in indices:
        try:
            return index, plan.feed.batch([index])
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
    raise MeasurementError("no image can be read")


def batch_contributions(
    run: SharedRun, x: Tensor, images: list[int], *, most: int = 1, compare: bool = False
) -> Iterator[tuple[list[int], Iterator[list[Contribution]]]]:
    """Contributions of a batch to every unit, by the method and with the draws that are planned.

    Args:
        run: What is measured.
        x: Inputs (B, C_in, *space), or the part of them that is needed, where the model lies; one alone of other
            methods than the gradient.
        images: Their indices.
        most: How many images a batch will have at most.
        compare: Also take the norm with random signs, to tell a true gradient from rounding noise.

    Yields:
        For each unit its numbers, one per reference, and its draws, each with one contribution per reference, made as
        they are asked for.
    """
    adapter, method = run.model.adapter, run.settings.method
    if method == "gradient":
        yield from of_units(run.passes(len(images), most), x, images, compare=compare)
        return
    (plan,) = run.plans
    if by_removal(run.settings):
        every = removal_draws(adapter, x, plan.question)
    else:
        from erfscope.core.run.attribution.captum_methods import captum_draws

        every = captum_draws(adapter, x, plan.question, images[0], method=method, compare=compare)
    for number, draws in enumerate(every):
        yield [number], ([draw] for draw in draws)


def _ratio(draw: Contribution) -> float | None:
    """How large the gradient is against one with random signs, for the first image that has a gradient; None if none
    has, or it was not asked for."""
    for norm, other in zip(*(each.flatten(1).sum(1).sqrt().tolist() for each in draw.squares or ()), strict=True):
        if math.isfinite(norm) and math.isfinite(other) and norm > 0:
            # Two channels alike may cancel with random signs and not with the readout's.
            return norm / other if other > 0 else math.inf
    return None
