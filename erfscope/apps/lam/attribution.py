"""The attribution of a window: gradients along a path of ever less blurred inputs (Gu and Dong 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from erfscope.core import ErfscopeError, MeasurementError, OpenModel, Site, sound_gradients, unknown

#: Which images of a step give its gradient: their weights, of the more and of the less blurred one.
GRADIENTS = {"end": (0.0, 1.0), "start": (1.0, 0.0), "middle": (0.5, 0.5)}
#: What a map is of the signed attribution (C, *space), as the demo and its copies have it.
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda signed: signed.sum(0).abs(),
    "channels": lambda signed: signed.abs().sum(0),
    "root": lambda signed: signed.sum(0).abs().sqrt(),
}
#: Added to the width of every blur, so that the last one, of width 0, is none: the demo's number.
EPSILON = 1e-5
#: Pixels of output that go through a model at once.
MOST = 1 << 22


class LamWindow(NamedTuple):
    """A square of the output, or a cube: its first pixel along each axis, and its side."""

    start: tuple[int, ...]
    size: int

    def of(self, maps: Any) -> Any:
        """The part of maps (..., *space) inside it."""
        return maps[(..., *(slice(first, first + self.size) for first in self.start))]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlurPath:
    """The path x_0 ... x_N of inputs, x_k = G(sigma (1 - k / N)) * x, and what is made of the gradients along it."""

    steps: int = 50
    sigma: float = 1.2
    #: Side of the kernel G in pixels.
    kernel: int = 9
    #: A name of :data:`GRADIENTS`, and one of :data:`MAPS`.
    gradient_at: str = "end"
    map_of: str = "sum"

    def __post_init__(self) -> None:
        if self.gradient_at not in GRADIENTS:
            raise unknown("image of a step", self.gradient_at, GRADIENTS)
        if self.map_of not in MAPS:
            raise unknown("kind of map", self.map_of, MAPS)
        if self.steps < 1 or not 0 < self.sigma < math.inf or self.kernel < 3 or self.kernel % 2 == 0:
            given = f"steps={self.steps}, sigma={self.sigma:g}, kernel={self.kernel}"
            raise ErfscopeError(
                f"a path has at least one step, a sigma above 0 and a kernel of 3, 5, 7, ..., not {given}"
            )

    def part(self, x: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """The images x_first ... x_(stop - 1), and the weight of the gradient at each: of its two steps
        d_k = x_(k + 1) - x_k, as :data:`GRADIENTS` says, w_k = at_start d_k + at_end d_(k - 1).

        Args:
            x: The input (C, *space), float64.
            first: The first image.
            stop: The one behind the last.
        """
        # Before the first image and behind the last, where there is no step, stand these.
        numbers = [min(max(number, 0), self.steps) for number in range(first - 1, stop + 1)]
        widths = [self.sigma * (1 - number / self.steps) + EPSILON for number in numbers]
        every = torch.stack([blurred(x, width, self.kernel // 2) for width in widths])
        steps = every.diff(dim=0)
        at_start, at_end = GRADIENTS[self.gradient_at]
        return every[1:-1], at_start * steps[1:] + at_end * steps[:-1]


def blurred(x: Tensor, sigma: float, radius: int) -> Tensor:
    """An input (C, *space) under a Gaussian kernel, (2 radius + 1) cells along each axis, with sum 1; borders are
    reflected without being repeated."""
    offsets = range(-radius, radius + 1)
    weights = [math.exp(-(offset**2) / (2 * sigma**2)) for offset in offsets]
    for axis, side in enumerate(x.shape[1:], start=1):
        cells, period = torch.arange(side), max(1, 2 * (side - 1))
        lines = [((cells + offset) % period) for offset in offsets]
        shifted = [x.index_select(axis, torch.minimum(line, period - line)) for line in lines]
        x = sum(weight * each for weight, each in zip(weights, shifted, strict=True)) / sum(weights)  # type: ignore[assignment]
    return x


def edges(output: Tensor, window: LamWindow) -> Tensor:
    """The objective: sqrt(sum over axes a of (I[p] - I[p + e_a])²), summed over channels and the window's pixels p.

    Where all differences are 0 its gradient is taken as 0.

    Args:
        output: (B, C, *space).
        window: It ends before the last pixel of each axis.

    Returns:
        (B,)
    """
    places = np.array(window.start) + np.eye(len(window.start), dtype=int)
    moved = [LamWindow(tuple(place), window.size).of(output) for place in places]
    squares = torch.stack([(window.of(output) - each) ** 2 for each in moved]).sum(0)
    is_edge = squares > 0
    return (torch.where(is_edge, squares, 1.0).sqrt() * is_edge).flatten(1).sum(1)


class Attribution(NamedTuple):
    """What the input gives to one window."""

    #: (C, *space), float64.
    signed: Tensor
    #: Its sum over the difference of the objective along the path: 1 where the steps are short enough; None where the
    #: objective does not change.
    completeness: float | None
    #: What the model makes of the input, inside the window: (C, size, ...).
    restored: Tensor


def attribute(
    model: OpenModel,
    site: Site,
    x: Tensor,
    windows: Sequence[LamWindow],
    path: BlurPath,
    *,
    batch_size: int | None = None,
) -> list[Attribution]:
    """The attributions of windows, A = sum over k of w_k dF/dx (x_k): images go through the model in batches, windows
    share the forward pass, and of the model's operations those run that the windows need.

    Args:
        model: The model at the size of the input.
        site: What it returns.
        x: The input (C, *space), float64.
        windows: Each inside the output.
        path: The path.
        batch_size: Images per forward pass; as many as have :data:`MOST` pixels of output if None.

    Raises:
        MeasurementError: the model fails, or gives no finite gradient.
    """
    adapter, images = model.adapter, path.steps + 1
    least = [min(each.start[axis] for each in windows) for axis in range(len(site.space))]
    # The objective reads one pixel further.
    ends = [max(each.start[axis] + each.size + 1 for each in windows) for axis in range(len(site.space))]
    batch = batch_size or max(1, min(math.ceil(images / 3), MOST // math.prod(site.space)))
    batch = min(batch, adapter.most_images or batch)
    inner = [LamWindow(tuple(int(at) for at in np.subtract(each.start, least)), each.size) for each in windows]
    signed = torch.zeros(len(windows), *x.shape, dtype=torch.float64)
    values = torch.zeros(len(windows), images, dtype=torch.float64)
    for first in range(0, images, batch):
        points, weights = path.part(x, first, stop := min(first + batch, images))
        run = model.part_pass(site, tuple(zip(least, ends, strict=True)), len(points))
        with sound_gradients(adapter.device):
            leaf = points.to(adapter.device, adapter.dtype).requires_grad_()
            # A copy: some models change their input in place.
            output = run(leaf.clone())
            if not output.requires_grad:
                raise MeasurementError(
                    "gives an output without a gradient with respect to the image", model=model.label
                )
            for number, window in enumerate(inner):
                objective = edges(output, window)
                (gradient,) = torch.autograd.grad(objective.sum(), leaf, retain_graph=number + 1 < len(windows))
                signed[number] += (gradient.double().cpu() * weights).sum(0)
                values[number, first:stop] = objective.detach().double().cpu()
    if not (signed.isfinite().all() and values.isfinite().all()):
        raise MeasurementError("gives an output or a gradient that is not finite on this image", model=model.label)
    last, changes = output[-1].detach().double().cpu(), values[:, -1] - values[:, 0]
    shares = [float(each.sum() / change) if change else None for each, change in zip(signed, changes, strict=True)]
    return [Attribution(*each) for each in zip(signed, shares, [window.of(last) for window in inner], strict=True)]
