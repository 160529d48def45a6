"""Ways to measure many units of a layer by less than whole images, and when these pay: as a batch of parts of the
image, or each by the operations that it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from erfscope.core.adapter import Features, Reference
from erfscope.core.graph.moved import MovedForward, paces_of
from erfscope.core.run.attribution.forward import guarded
from erfscope.core.run.engine.batch import MOST_IMAGES, MOST_PIXELS, BatchPlan, Need, device_and_dtype, plan_batches
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds
from erfscope.core.run.engine.plan import Plan
from erfscope.core.run.engine.shared_run import BACKWARD, SharedRun
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import sides

#: Copies of one image in a pass at most on a CPU, each for one group of units; of two images half as many, of more than
#: four none. Measured on two cores at 224 x 224 as times faster than one by one, for 4 copies, 8 copies and 8 units of
#: one pass (``is_grads_batched``): vit_tiny 1.35, 1.26, 1.16; swin_tiny 1.30, 1.24, 1.10; layer4 of resnet18 1.26,
#: 1.24, 1.00.
COPIES_ON_CPU = 4
#: How many times faster these are than one by one.
COPIES_SAVE = 1.3
#: What operations on small parts take beyond their multiply-adds, as a share of whole ones: for units of layer3 of
#: resnet50 that need 0.20, 0.41 and 0.66 of the multiply-adds a backward pass takes 0.39, 0.57 and 0.79 of the time.
SMALL_PARTS = 0.2
#: Multiply-adds (10^9) that take as long as to find the operations of one unit: 10 ms.
PLANNING = 0.5


def most_copies(plan: Plan, taken: int, needs: Sequence[Need]) -> int:
    """How many copies of so many images may go through together at most."""
    on_cpu = device_and_dtype(plan)[0].type == "cpu"
    pixels = math.prod(plan.model.adapter.preprocess.size)
    most = plan.settings.batch_size or (COPIES_ON_CPU if on_cpu else min(MOST_IMAGES, MOST_PIXELS // pixels))
    copies = max(1, most // taken)
    while copies > 1 and any(2 * need.takes(copies * taken) > need.available for need in needs):
        copies //= 2
    return copies


def needs_of_whole_images(plan: Plan) -> BatchPlan:
    """How many whole images go through together, and the memory that they take."""
    return plan_batches(SharedRun(replace(plan, plain_reason=plan.plain_reason or "every unit is measured")))


def moved_forward(plan: Plan, units: int, passes: int) -> MovedForward | None:
    """The pass of units that have parts of the image for themselves, where that takes less than whole images do.

    Args:
        plan: What is measured: one unit of the layer.
        units: How many are measured.
        passes: Backward passes of whole images that they would take for each draw.

    Returns:
        The pass; None where it takes no less, or where other units need other operations than the plan's one.
    """
    adapter, site = plan.model.adapter, plan.site
    if site.wrt != IMAGE or plan.question.place is not None or not plan.crops:
        return None
    draws = _draws(plan)
    ((taken, whole),) = plan.cropped_gmacs
    if units * taken * (1 + BACKWARD * draws) >= whole * (1 + BACKWARD * draws * passes):
        return None
    parts = math.prod(adapter.preprocess.size) / math.prod(sides(plan.crops[0].image))
    copies = most_copies(plan, 1, needs_of_whole_images(plan).needs)
    count = min(units, int(copies * parts), adapter.most_images or units)
    paces = paces_of(plan.crops[0])
    if count < 2 or paces is None:
        return None
    # Of one size: three and three rather than four and two.
    count = math.ceil(units / math.ceil(units / count))
    return MovedForward(plan.crops[0], paces, count, adapter.tensors())


def crops_pay(plan: Plan, units: Sequence[tuple[int, ...]], passes: float) -> bool:
    """Whether units take less by the operations that each needs than by those of whole images. Not on a graphics
    processor, where many copies of an image take as long as one.

    Args:
        plan: What is measured: one unit of the layer.
        units: Some of those that are.
        passes: Backward passes of whole images for each draw, over the units.
    """
    if not plan.crops or not units or device_and_dtype(plan)[0].type != "cpu":
        return False
    draws = _draws(plan)
    counted = [cropped_giga_multiply_adds(plan.model.crops(plan.site, [unit])[0]) for unit in units]
    taken, whole = (sum(each) / len(counted) for each in zip(*counted, strict=True))
    alone = PLANNING + (taken + SMALL_PARTS * whole) * (1 + BACKWARD * draws) * COPIES_SAVE
    return bool(alone < whole * BACKWARD * draws * passes)


def _draws(plan: Plan) -> int:
    """Backward passes of one unit on one image."""
    return plan.site.shape[1] if plan.question.draws == "all" else plan.question.draws


def features_of(
    forward: MovedForward, image: Tensor, units: Sequence[tuple[int, ...]]
) -> tuple[Features, list[tuple[int, ...]]]:
    """The channels of units (count, C, 1) on one image (1, C_in, *space), and the first cell of the part of each along
    each axis; units that a pass lacks are the last one again."""
    filled = [*units, *[units[-1]] * (forward.count - len(units))]
    with guarded(image.device, whole_model=False), torch.enable_grad():
        values, parts, firsts = forward(image, filled)
    reference = Reference(edge=parts, layout=forward.layout, shape=tuple(parts.shape))
    return Features(map=values, reference=reference), [tuple(map(int, first)) for first in firsts]
