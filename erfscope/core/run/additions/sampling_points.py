"""``--show-samples``: where operations that read at points which other tensors give, such as deformable convolutions,
read the first image for a unit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from erfscope.core.answer.result import Result, SamplingPoints
from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.places import describe
from erfscope.core.graph.recording import FIRST
from erfscope.core.graph.rules.reading import Call
from erfscope.core.graph.run import Forward, Wanted, crop
from erfscope.core.run.attribution.forward import guarded
from erfscope.core.run.engine.batch import device_and_dtype, first_readable
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums
from erfscope.core.system.model_errors import wrap_model_errors
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import inside

FloatArray = NDArray[np.floating[Any]]
Units = Sequence[tuple[int, ...]]
#: Cells of one operation that a unit may need; more points would hide the picture.
MOST = 400


def with_sampling_points(plan: Plan, _sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """The results, one per unit, with the points that the operations before it read of the first image."""
    with wrap_model_errors(plan.model.label, plan.model.adapter):
        device, dtype = device_and_dtype(plan)
        x = first_readable(plan, plan.indices)[1].to(device=device, dtype=dtype)
        return [replace(result, sampling_points=_sampling_points(plan, at, x)) for at, result in enumerate(results)]


def _sampling_points(plan: Plan, number: int, x: Tensor) -> tuple[SamplingPoints, ...]:
    """One record for each operation of which the unit needs at most :data:`MOST` cells, in the order of execution."""
    recording = plan.model.recording
    found = plan.model.site(plan.site.layer).crop([plan.question.units[number].index], recording.images)
    assert found is not None
    x = x.expand(recording.images, *x.shape[1:])
    fields, points = recording.fields(recording.positions.image, FIRST, IMAGE), []
    for step in found.steps:
        needed = found.asked[step.node][2:]
        if step.call.name not in POINTS or math.prod(map(len, needed)) > MOST:
            continue
        units = [*itertools.product(*(each.tolist() for each in needed))]
        taken = step.call.tensor("input")
        first = fields.centers(taken, FIRST, (0,) * len(needed))[0]
        steps = [fields.stride(taken, FIRST, axis) for axis in range(len(needed))]
        px = np.array(first) + np.array(steps) * POINTS[step.call.name](plan, step.call, units, x)
        points.append(SamplingPoints(operation=describe(step.node), points_px=tuple(map(tuple, px.tolist()))))
    return tuple(points)


def _deformed(plan: Plan, call: Call, units: Units, x: Tensor) -> FloatArray:
    """The cells that a deformable convolution reads: for each unit those of its kernel, with their offsets."""
    kernel = shape_of(call.args["weight"])[2:]
    strides, paddings, dilations = (
        np.array([call.args[f"{key}_{axis}"] for axis in "hw"]) for key in ("stride", "pad", "dilation")
    )
    offsets = _values(plan, call.args["offset"], FIRST, units, x).reshape(len(units), -1, math.prod(kernel), 2)
    taps = np.indices(kernel).reshape(2, -1).T * dilations
    regular = (np.array(units) * strides - paddings)[:, None, None] + taps
    found: FloatArray = (regular + offsets).reshape(-1, 2)
    return found


def _on_grid(plan: Plan, call: Call, units: Units, x: Tensor) -> FloatArray:
    """The cells that grid_sample reads, whose points lie between -1 and 1, the last axis first."""
    sides = np.array(shape_of(call.tensor("input"))[2:])
    layout = Layout(dims=tuple(range(1, 1 + len(sides))))
    points = _values(plan, call.args["grid"], layout, units, x)[:, ::-1]
    found: FloatArray = (points + 1) / 2 * (sides - 1)
    if not call.args["align_corners"]:
        found = ((points + 1) * sides - 1) / 2
    return found


POINTS: dict[str, Callable[[Plan, Call, Units, Tensor], FloatArray]] = {
    "deform_conv2d": _deformed,
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _on_grid),
}


def _values(plan: Plan, node: fx.Node, layout: Layout, units: Units, x: Tensor) -> FloatArray:
    """The numbers (units, channels) of a tensor for the first image."""
    recording = plan.model.recording
    tensors = plan.model.adapter.tensors()
    if node not in recording.graph.live:
        number = recording.numbers(node)
        assert number is not None
        return layout.to_map(number)[(0, slice(None), *np.transpose(units))].T.double().cpu().numpy()
    ends = Wanted(node, layout), Wanted(recording.graph.inputs[0], FIRST)
    needed = crop(recording.graph, recording.numbers, *ends, units, recording.images)
    assert needed is not None
    with guarded(x.device, whole_model=False), torch.no_grad():
        ((values, _),) = Forward(needed, tensors)(x[inside(needed.image)])
    return values[0].T.double().cpu().numpy()
