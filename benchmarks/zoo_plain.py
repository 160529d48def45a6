"""The plain computation beside which ``zoo_oracle.py`` puts erfscope's: knows torch and what libraries document, and
nothing of erfscope.

The **tensor** is that of a hook on the named layer, or timm's ``forward_intermediates(norm=False, output_fmt="NCHW")``.
Its **positions**: of a map (B, C, h, w) or (B, h, w, C) the two axes, of tokens (B, N, C) the last h w, row by row,
behind N - h w prefix tokens. The **centre** of a unit is offset + unit * stride, by receptive-field arithmetic over the
convolutions, poolings and resizes that lead from the input's size to the map's; where parallel ones disagree, all
offsets are kept."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Convolutions and poolings inside attention make keys smaller, and queries only in models whose attention itself
#: strides.
OFF_PATH = re.compile(r"(^|[._])(sr|sequence_reduction|attn|attention|token_mixer|se)([._\d]|$)")

Array = np.ndarray[Any, Any]
#: (side in, side out, shift, step) along one axis: cell j of the output has its centre at cell shift + j * step of the
#: input.
Step = tuple[int, int, float, float]


def pictures(channels: int, size: tuple[int, ...]) -> Tensor:
    """One input (1, C, *size): noise on the left, smooth bright areas with an edge on the right."""
    noise = torch.randn(1, channels, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    axes = torch.meshgrid(*(torch.linspace(-1, 1, side, dtype=torch.float64) for side in size), indexing="ij")
    wave = sum((3 * axis + k).sin() for k, axis in enumerate(axes)) + (sum(axes) > 0.2)
    return torch.where(axes[-1] < 0, noise, wave + 0.05 * noise)


def weights_of(y: Tensor) -> Tensor:
    """Fixed weights of the channels, so that no sum cancels after a norm."""
    return (torch.arange(y.shape[1], dtype=y.dtype, device=y.device) * 1.7).cos()


def readout(y: Tensor, _signs: Tensor | None = None) -> Tensor:
    """(B, C) -> (B,)."""
    return (y * weights_of(y)).sum(1)


def contribution(g: Tensor) -> Tensor:
    """(B, C, *space) -> (B, *space)."""
    return g.abs().sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is true of one unit."""

    map: Array | None
    #: Per axis the centres that branches give; () where the arithmetic does not reach the map.
    centres: tuple[tuple[float, ...], ...] = ()
    #: Centre by halves: the input is divided evenly.
    even: tuple[float, ...] = ()
    stride: tuple[float, ...] = ()
    #: Whether maps were made larger on the way, so that some of the centres may be those of other maps of the size.
    goes_up: bool = False
    note: str = ""

    @property
    def centre_text(self) -> str:
        """For the table."""
        if not all(self.centres) or not self.centres:
            return f"about {', '.join(f'{c:.4g}' for c in self.even)}"
        return ", ".join(
            (
                " or ".join(f"{c:.4g}" for c in axis)
                if len(axis) < 4
                else f"{axis[0]:.4g} to {axis[-1]:.4g} by {len(axis)} branches"
            )
            for axis in self.centres
        )

    def judge_centre(self, centre: Sequence[float], *, exact: bool) -> tuple[bool, str]:
        """Whether a centre is right, and what is not.

        One that is called exact must be the one of the arithmetic; where branches disagree none may be called exact.
        Where the arithmetic does not reach, and where the centre is said to be inexact, it must lie within one and a
        half strides of an even division, or of one that the arithmetic gives."""
        reached = bool(self.centres) and all(self.centres)
        known = [[e, *(axis if reached else ())] for e, axis in zip(self.even, self.centres, strict=True)]
        near = all(
            min(abs(c - k) for k in axis) <= 1.5 * s + 1e-6
            for c, axis, s in zip(centre, known, self.stride, strict=True)
        )
        if not near:
            return False, f"the unit stands near {self.centre_text}"
        if not exact or not reached:
            return True, ""
        if any(len(axis) > 1 for axis in self.centres) and not self.goes_up:
            return False, f"called exact, though branches give {self.centre_text}"
        fits = all(min(abs(c - a) for a in axis) <= 1e-6 for c, axis in zip(centre, self.centres, strict=True))
        return fits, "" if fits else f"the centre is {self.centre_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """How to run a model plainly."""

    module: nn.Module
    #: x -> (B, C, h, w), where a library documents the deepest map; else the layer's own output is taken.
    deepest: Callable[[Tensor], Tensor] | None = None
    #: Layers any of which is as deep as the default must be; () accepts every one.
    layers: tuple[str, ...] = field(default=())
    #: Sizes that the map may have; () accepts every one.
    spaces: tuple[tuple[int, ...], ...] = field(default=())

    @classmethod
    def of_timm(cls, module: nn.Module) -> Oracle:
        """By ``forward_intermediates`` where the model has it."""
        run = getattr(module, "forward_intermediates", None)
        if run is None:
            return cls(module=module)
        return cls(module=module, deepest=lambda x: run(x, norm=False, output_fmt="NCHW", intermediates_only=True)[-1])

    @classmethod
    def of_module(cls, module: nn.Module, layers: Iterable[str], spaces: Iterable[tuple[int, ...]]) -> Oracle:
        """By hooks."""
        return cls(module=module, layers=tuple(layers), spaces=tuple(spaces))

    def truth(self, x: Tensor, layer: str, map_shape: tuple[int, ...], unit: tuple[int, ...]) -> Truth:
        """The map and the centre of one unit of a layer of the shape (C, *space)."""
        note = self._wrong_layer(x, layer)
        if self.spaces and map_shape[1:] not in self.spaces:
            wanted = " or ".join("x".join(str(side) for side in space) for space in self.spaces)
            return Truth(
                map=None,
                note=f"{layer} is read as a map of {'x'.join(str(side) for side in map_shape[1:])}, not {wanted}",
            )
        rows: list[Tensor] = []
        for picture in x.split(1):
            leaf = picture.clone().requires_grad_(True)
            with noted_steps(self.module) as steps, written_out_norms():
                y = (
                    self.deepest(leaf)
                    if self.deepest is not None
                    else output_of(self.module, partial(self.module, leaf), layer)
                )
            features = as_map(y, map_shape)
            if features is None:
                return Truth(
                    map=None,
                    note=(
                        f"{layer} is {tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__}, no map"
                        f" {map_shape}"
                    ),
                )
            (g,) = torch.autograd.grad(readout(features[(slice(None), slice(None), *unit)]).sum(), leaf)
            rows.append(contribution(g)[0])
        mean = torch.stack(rows).mean(0)
        size, space = tuple(x.shape[2:]), map_shape[1:]
        stride = tuple(s / m for s, m in zip(size, space, strict=True))
        centres = tuple(
            tuple(sorted(places(steps, axis, size[axis], space[axis], unit[axis]))) for axis in range(len(size))
        )
        even = tuple((u + 0.5) * s - 0.5 for u, s in zip(unit, stride, strict=True))
        return Truth(
            map=(mean / mean.sum()).numpy(),
            centres=centres,
            even=even,
            stride=stride,
            goes_up=goes_up(steps),
            note=note,
        )

    def _wrong_layer(self, x: Tensor, layer: str) -> str:
        if not self.layers or layer in self.layers:
            return ""
        run = partial(self.module, x[:1])
        own = output_of(self.module, run, layer)
        for name in self.layers:
            other = output_of(self.module, run, name)
            if (
                isinstance(own, Tensor)
                and isinstance(other, Tensor)
                and own.shape == other.shape
                and torch.equal(own, other)
            ):
                return ""
        return f"layer {layer}, not {' or '.join(self.layers)}"


@contextlib.contextmanager
def written_out_norms() -> Iterator[None]:
    """Batch norms with frozen statistics as the scale and shift that they are.

    PyTorch 2.14's gradient of its own kernel on the CPU is wrong where one image alone gets a gradient whose channels
    lie side by side in memory, as behind ``flatten(2).transpose(1, 2)``: 7e-8 of the map off on efficientvit_m0, half
    of it on lambda_resnet26t."""
    original = F.batch_norm

    def batch_norm(
        x: Tensor,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        *more: Any,
        **named: Any,
    ) -> Tensor:
        if training or mean is None:
            return original(x, mean, var, weight, bias, training, *more, **named)
        eps = named.get("eps", more[1] if len(more) > 1 else 1e-5)
        scale = (var + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        shape = (1, -1, *(1,) * (x.dim() - 2))
        return x * scale.view(shape) + shift.view(shape)

    F.batch_norm = batch_norm
    try:
        yield
    finally:
        F.batch_norm = original


def output_of(module: nn.Module, run: Callable[[], Any], layer: str) -> Any:
    """What a layer returns in a pass, by a hook: an item of a container by ``NAME[key]``, else the first tensor in it;
    the layer "output" is what the pass returns."""
    name, *keys = re.split(r"[\[\]]+", layer.rstrip("]"))
    found: list[Any] = []

    def keep(output: Any) -> None:
        for key in keys:
            output = output[int(key)] if isinstance(output, list | tuple) else output[key]
        while not isinstance(output, Tensor) and not keys:
            values = list(output.values()) if hasattr(output, "values") else list(output)
            output = values[0]
        found.append(output.clone() if isinstance(output, Tensor) else output)

    hooked = nn.Module() if name == "output" else module.get_submodule(name)
    handle = hooked.register_forward_hook(lambda *args: keep(args[2]))
    try:
        returned = run()
    finally:
        handle.remove()
    if name == "output":
        keep(returned)
    return found[-1]


def as_map(y: Any, map_shape: tuple[int, ...]) -> Tensor | None:
    """A tensor as (B, C, *space) of that shape, where channels may be several axes or none; None if it is no map."""
    if not isinstance(y, Tensor):
        return None
    channels, *space = map_shape
    shape, count = tuple(y.shape), int(np.prod(space))
    if shape[1:] == map_shape:
        return y
    if shape[-len(space) :] == tuple(space) and int(np.prod(shape[1:])) == int(np.prod(map_shape)):
        return y.reshape(shape[0], *map_shape)
    if shape[1:] == (*space, channels):
        return y.movedim(-1, 1)
    if len(shape) == 3 and shape[2] == channels and shape[1] >= count:
        return y[:, shape[1] - count :].transpose(1, 2).unflatten(2, tuple(space))
    return None


@contextlib.contextmanager
def noted_steps(module: nn.Module) -> Iterator[list[tuple[Step, ...]]]:
    """Within it every convolution, pooling and resize that makes a map smaller or larger is noted, as a list of (one
    step per axis)."""
    steps: list[tuple[Step, ...]] = []
    original = F.interpolate

    def note(part: nn.Module, args: Any, output: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor) or args[0].ndim < 4:
            return
        before, after = args[0].shape[2:], output.shape[2:]
        rank = len(before)
        kernel, stride, dilation = (
            _per_axis(getattr(part, name, None), rank, 1) for name in ("kernel_size", "stride", "dilation")
        )
        padding = _padding(part, before, kernel, stride, dilation)
        is_up = isinstance(part, nn.modules.conv._ConvTransposeNd)
        for shifts in (
            [[(k - 1) * d / 2 - p for k, d, p in zip(kernel, dilation, padding, strict=True)]]
            if before != after
            else []
        ):
            moves = [
                (-shift / t, 1 / t) if is_up else (shift, float(t)) for shift, t in zip(shifts, stride, strict=True)
            ]
            steps.append(tuple((b, a, *move) for b, a, move in zip(before, after, moves, strict=True)))

    def interpolate(
        x: Tensor,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: Any = None,
        **more: Any,
    ) -> Tensor:
        out = original(x, size, scale_factor, mode, align_corners, **more)
        if x.shape[2:] != out.shape[2:]:
            scale = (
                [None] * (x.ndim - 2)
                if scale_factor is None
                else [scale_factor] * (x.ndim - 2)
                if isinstance(scale_factor, int | float)
                else scale_factor
            )
            each = zip(x.shape[2:], out.shape[2:], scale, strict=True)
            steps.append(
                tuple(
                    _resize(b, a, align=bool(align_corners), scale=None if more.get("recompute_scale_factor") else s)
                    for b, a, s in each
                )
            )
        return out

    kinds = (nn.modules.conv._ConvNd, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd)
    handles = [
        m.register_forward_hook(note)
        for name, m in module.named_modules()
        if isinstance(m, kinds) and not OFF_PATH.search(name)
    ]
    F.interpolate = interpolate
    try:
        yield steps
    finally:
        F.interpolate = original
        for handle in handles:
            handle.remove()


def _resize(before: int, after: int, *, align: bool, scale: float | None) -> Step:
    """Of a resize along one axis: the corners' centres on each other, or the corners' outer edges."""
    if align:
        return before, after, 0.0, (before - 1) / (after - 1) if after > 1 else 0.0
    step = 1 / scale if scale else before / after
    return before, after, step / 2 - 0.5, step


def _per_axis(value: Any, rank: int, default: int) -> list[int]:
    if value is None:
        return [default] * rank
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in value]


def _padding(
    module: nn.Module, before: Sequence[int], kernel: list[int], stride: list[int], dilation: list[int]
) -> list[int]:
    """Cells put before the first one: as declared, or as TensorFlow's SAME does."""
    if type(module).__name__.endswith("Same"):
        total = [
            max((-(-s // t) - 1) * t + (k - 1) * d + 1 - s, 0)
            for s, k, t, d in zip(before, kernel, stride, dilation, strict=True)
        ]
        return [side // 2 for side in total]
    declared = getattr(module, "padding", 0)
    if isinstance(declared, str):
        return [d * (k - 1) // 2 if declared == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    return _per_axis(declared, len(before), 0)


def places(steps: Sequence[tuple[Step, ...]], axis: int, side: int, wanted: int, unit: int) -> set[float]:
    """Centres of a unit along one axis by all chains of steps from ``side`` cells to ``wanted`` ones."""
    known: dict[int, set[tuple[float, float]]] = {side: {(0.0, 1.0)}}
    # Steps are in order of execution, and those that skip a level (a pooling to one cell, a tower of its own) end
    # elsewhere.
    for before, after, shift, step in dict.fromkeys(s[axis] for s in steps if axis < len(s)):
        for offset, jump in known.get(before, set()).copy() if step > 0 and step != 1 else ():
            known.setdefault(after, set()).add((round(offset + jump * shift, 9), jump * step))
    return {offset + unit * jump for offset, jump in known.get(wanted, set())}


def goes_up(steps: Sequence[tuple[Step, ...]]) -> bool:
    """Whether maps were made larger on the way, so that those of one size may have come by ways that no chain of sizes
    tells apart."""
    return any(after > before > 1 for each in steps for before, after, *_ in each)
