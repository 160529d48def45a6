"""Whether a model gives the same numbers twice, and the same ones for an image alone and beside another: by passes
without gradients.

The recorded pass shows which operations mix the images of a batch, and not that a model draws random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from erfscope.attribution.gradient import ForwardRecord, guarded, in_double
from erfscope.cone.cone import cropped
from erfscope.cone.memory_order import faster_order
from erfscope.engine.batch import draws
from erfscope.engine.batch_size import device_and_dtype, most_at_once, needs
from erfscope.engine.state import Plan, Sums
from erfscope.environment import ran_out
from erfscope.errors import ErfscopeError
from erfscope.finding import Finding
from erfscope.geometry.box import sides
from erfscope.geometry.layout import Layout
from erfscope.model_errors import blaming
from erfscope.restore import drawn_since, random_states, same_random_numbers

#: Largest relative difference (L2) of two maps that are the same but for rounding: kernels sum in another order for
#: another batch size.
SAME = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
#: Read from the recorded pass, which holds for one path through the model only.
UNKNOWN_PATH = Finding(
    code="one_by_one", text="measured one image at a time: the path through the model may depend on the other images"
)


def check_repeatability(plan: Plan, sums: Sums) -> None:
    """See that passes repeat and that images do not see each other; else have one image at a time measured and say why.

    The first image goes through the part that is measured alone. That is compared with its map in the first batch,
    while that is measured, or else, whatever the batch size, with a pass beside the second image, so that the same is
    said for all sizes. Captum's methods take one image at a time anyway. A lone image is left to
    :func:`check_lone_image`.

    Args:
        plan: What is measured.
        sums: With the batches planned. What is found is added to ``sums.repeatability``.

    Raises:
        ErfscopeError: an image cannot be read.
        MeasurementError: the model fails, or there is no memory for one image.
    """
    if plan.model.meta_failure is not None and not plan.model.sees_batch(plan.layer):
        sums.repeatability = (UNKNOWN_PATH,)
    elif plan.settings.method == "gradient" and (why := plan.model.mixes_gradients(plan.layer, plan.settings.wrt)):
        text = f"measured one image at a time: {why}, which may carry the gradient of one image to another"
        sums.repeatability = (Finding(code="one_by_one", text=text),)
    images = _images(plan)
    first = None if len(plan.indices) == 1 else next(images, None)
    if first is None:
        return
    with blaming(plan.model.label, plan.model.adapter):
        generators = random_states()
        batched = _is_in_first_batch(plan, sums)
        alone = _map_and_noise(plan, sums, first) if batched and not plan.convention.random else _map(plan, first)
        found = _repeats(plan, first, alone) if drawn_since(generators) else None
        if found is None and batched:
            sums.first_batch_check = partial(_apart_in_batch, plan, first, alone, images)
            sums.faster = _faster_order(plan, first, sums.planned)
        elif found is None:
            found = _stands_alone(plan, first, alone, images)
            sums.faster = None if found else _checked_faster_order(plan, first, alone, sums.planned)
    if found is not None:
        sums.planned = sums.at_once = 1
        sums.repeatability = (*sums.repeatability, found)


@contextlib.contextmanager
def check_lone_image(plan: Plan, sums: Sums) -> Iterator[None]:
    """Measure images inside the block; of a lone one whose pass draws random numbers, see whether passes repeat.

    What is found is added to ``sums.repeatability``.
    """
    if len(plan.indices) > 1:
        yield
        return
    generators = random_states()
    yield
    x = next(_images(plan), None) if drawn_since(generators) else None
    if x is None:
        return
    with same_random_numbers(), blaming(plan.model.label, plan.model.adapter):
        found = _repeats(plan, x, _map(plan, x))
    if found is not None:
        sums.repeatability = (*sums.repeatability, found)


def _repeats(plan: Plan, x: Tensor, alone: Tensor) -> Finding | None:
    """Say that a second pass of an image (1, C_in, *space) differs or may differ; None where it does not."""
    generators = random_states()
    distance = _difference(alone, _map(plan, x))
    drawn = drawn_since(generators)
    differs = distance > SAME[x.dtype]
    if not differs and not drawn:
        return None
    what = f"differ (by {distance:.1%})" if differs else "may differ, though the first two did not"
    cause = f"the model draws {' and '.join(drawn) or 'its own'} random numbers in its forward pass"
    other = ", unless another thread of this program drew them" * bool(drawn)
    return Finding(code="not_repeatable", text=f"identical passes {what}: {cause}{other}; measured one image at a time")


def _is_in_first_batch(plan: Plan, sums: Sums) -> bool:
    """Whether the first image will be measured beside others, by the same operations as alone, so that their pass is
    the comparison."""
    alike = plan.cones is not None and plan.settings.amp_dtype is None and plan.process_group.size == 1
    return alike and sums.seen == 0 and sums.planned > 1 and not plan.settings.workers and not plan.settings.keep_going


def _checked_faster_order(plan: Plan, x: Tensor, alone: Tensor, images: int) -> torch.memory_format | None:
    """The same where no batch is compared: two copies of an image go through the model so; None where that changes its
    map."""
    order = _faster_order(plan, x, images)
    if plan.cones is None or (order == torch.preserve_format and plan.folding is None):
        return None
    count = 1 if most_at_once(plan) == 1 or any(need.takes(2) > need.there for need in needs(plan)) else 2
    found = _map(plan, torch.cat([x] * count), faster=order)[:1]
    return order if _difference(alone, found) <= SAME[x.dtype] else None


def _stands_alone(plan: Plan, x: Tensor, alone: Tensor, others: Iterator[Tensor]) -> Finding | None:
    """What is to be said where an image (1, C_in, *space) has another map beside the next one; None where not, or where
    it stays alone."""
    if most_at_once(plan) == 1 or any(need.takes(2) > need.there for need in needs(plan)):
        return None
    other = next(others, None)
    if other is None:
        return None
    try:
        together = _map(plan, torch.cat([x, other]))
    except Exception as error:  # anything a model may raise
        if not ran_out(error):
            raise
        # Batches that do not fit with a gradient either are halved, which is said then.
        return None
    return _apart(plan, x, alone, together[:1])


def _apart_in_batch(plan: Plan, x: Tensor, alone: Tensor, others: Iterator[Tensor], beside: Tensor) -> Finding | None:
    """The same of an image in its batch; in the words of a batch of two, if those are apart too."""
    found = _apart(plan, x, alone, beside)
    if found is None or _difference(_map(plan, x, without_gradients=False), beside) <= SAME[x.dtype]:
        return None
    return _stands_alone(plan, x, alone, others) or found


def _faster_order(plan: Plan, x: Tensor, images: int) -> torch.memory_format:
    """The order of memory for batches of this size, which the first of them is compared in."""
    takes_any = all(cone.keeps_memory_order for cone in plan.cones or ())
    return faster_order(x, images) if plan.cones and takes_any else torch.preserve_format


def _apart(plan: Plan, x: Tensor, alone: Tensor, beside: Tensor) -> Finding | None:
    """What is to be said where an image has one map alone and another beside other images: that, or that no pass
    repeats."""
    distance = _difference(alone, beside)
    if distance <= SAME[x.dtype]:
        return None
    if (varies := _repeats(plan, x, alone)) is not None:
        return varies
    image = "noise" if plan.settings.workers else "the first image"
    text = f"measured one image at a time: {image} gives other numbers beside another one (by {distance:.1%})"
    return Finding(code="one_by_one", text=text)


def _images(plan: Plan) -> Iterator[Tensor]:
    """The images that can be read, (1, C_in, *space) or the part of it that is needed, where the model lies; noise
    where others read."""
    device, dtype = device_and_dtype(plan)
    if plan.settings.workers:
        # Images are read by processes of their own, which is not to be done here: noise serves as well.
        space = plan.model.adapter.preprocess.size if plan.box is None else sides(plan.box)
        shape = (1, plan.model.adapter.preprocess.channels, *space)
        for seed in range(len(plan.indices)):
            yield torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device=device, dtype=dtype)
        return
    for index in plan.indices:
        try:
            x = plan.read(index)
        except ErfscopeError:
            if not plan.settings.keep_going:
                raise
            continue
        yield x.to(device=device, dtype=dtype)


def _map(plan: Plan, x: Tensor, *, without_gradients: bool = True, faster: torch.memory_format | None = None) -> Tensor:
    """The layer's map (B, C, *space) of the part that is measured for the first unit, without autocast.

    As the model computes it, or in an order of memory and with norms folded as ``Sums.faster`` says.
    """
    adapter = plan.model.adapter
    with contextlib.ExitStack() as stack:
        stack.enter_context(guarded(x.device))
        known: Mapping[str, Layout] | None
        if plan.cones is None:
            part, known = x, plan.model.recording.layouts(plan.layer, plan.settings.wrt)
        else:
            cone = plan.cones[0]
            part, known = (
                cone.of_image(x, None if plan.box is None else tuple(low for low, _ in plan.box)),
                cone.layouts,
            )
            stack.enter_context(cropped(adapter.module, cone.input_crops, cone.cellwise_crops))
        if faster is not None and plan.folding is not None:
            stack.enter_context(plan.folding)
        stack.enter_context(torch.no_grad() if without_gradients else torch.enable_grad())
        # A copy, as models may work in place on what they get.
        copied = part.clone(memory_format=faster or torch.preserve_format)
        return adapter.features(copied, plan.layer, known=known).map.clone()


def _map_and_noise(plan: Plan, sums: Sums, x: Tensor) -> Tensor:
    """The same map of the run's first image; the norms of its gradients with random signs are taken from the same
    pass."""
    records: list[ForwardRecord] = []
    first = plan.indices[0]
    for draw in draws(plan, x, [first], records, is_noise=True):
        sums.noise[draw.unit] = first, float(draw.norms[0])
    return records[0].first_map.clone()


def _difference(one: Tensor, other: Tensor) -> float:
    """Relative L2 difference of two maps; numbers that are not finite count as zero, as the measurement itself tells of
    them."""
    a, b = (torch.nan_to_num(in_double(y), nan=0.0, posinf=0.0, neginf=0.0) for y in (one, other))
    scale = float(torch.maximum(a.norm(), b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0
