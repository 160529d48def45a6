"""A table of nets, a row each, with what is true of it, stated by hand: which unit stands where, or that none does.

``tests/test_nets.py`` takes each through all that holds for any net. Nothing here knows how erfscope works. A new
operation, or a net that was reported, is one more row, in the file of this folder that it fits in::

    @net("resize", plane(-0.5, 1.0))
    def bilinear_up_of_a_strided_map():
        "A stride-2 map whose cell u stands at 2u, bilinear by two: unit u at u - 0.5."
        return Does(lambda m, x: m.out(up(m.stem(x).tanh())), stem=conv(s=2), out=conv(4))

All lie inside the rules of docs/graph.md; a factory's docstring is its claim.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

#: Side of most inputs, in pixels: not square, so that swapped axes show.
SIZE = (32, 40)

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Where the units of one layer stand."""

    grid: Index
    #: (raw output of the layer, index of a unit) -> its channels (B, C).
    pick: Callable[[Any, Index], Tensor]
    #: Index of a unit -> its centre in pixels; None where that is not stated.
    centre: Callable[[Index], Sequence[float]] | None = None
    #: Module whose output it is, by its dotted name; "output" is the net itself, ``NAME[key]`` an item.
    layer: str = "output"
    #: Whether each unit has one centre: where branches disagree (False) a result must say that its centre is not exact.
    #: None where it may: mirrored axes, and places that the picture decides.
    exact: bool | None = True
    #: How far in pixels a centre may lie from the stated one: half a source cell after a resize by nearest neighbours,
    #: else nothing.
    slack: float = 1e-6

    def units(self) -> itertools.product[Index]:
        """All indices."""
        return itertools.product(*(range(side) for side in self.grid))


#: right: measured, and right. refused: no map at all. either: right, or refused. noisy: refused, or told that runs
#: differ.
Expected = Literal["right", "refused", "either", "noisy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A net and what must hold for it."""

    kind: str
    make: Callable[[], nn.Module]
    #: The default layer, and others that are as deep (items of one output); () where a refusal is right.
    positions: tuple[Positions, ...] = ()
    expected: Expected = "right"
    size: Index = SIZE
    channels: int = 3
    convention: Literal["luo", "jacobian"] = "luo"
    #: "float32" for nets that cannot run in float64.
    dtype: Literal["float32", "float64"] = "float64"
    #: Number of tokens that a refusal must name.
    tokens: int | None = None
    #: Whether pictures of one batch meet, so that it must be said that they go in one by one.
    mixes_batch: bool = False
    #: Whether a unit sees exactly its own cell where every ``mix`` in the net is zero.
    local: bool = False
    #: Whether its operations do not show where units stand, so that a layer is read by its shape, with a finding.
    by_shape: bool = False
    #: Whether the operations can be recorded; an error says why not.
    is_recorded: bool = True
    #: Whether units see, with weights that hide nothing, exactly the cells between the ends of their fields.
    tight: bool = False
    #: What the sentence says for which the model itself is run, and not what a unit needs of it.
    plain: str = ""
    #: Whether a pass leaves something for the next one, so that it is wrapped anew for each measurement.
    keeps: bool = False
    #: What a row of a table is called; the factory's name if "".
    called: str = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.called or self.make.__name__

    @property
    def claim(self) -> str:
        """What is odd about it."""
        return inspect.getdoc(self.make) or ""

    def build(self) -> nn.Module:
        """The net with seeded numbers, for evaluation."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = self.make()
            # Biases and norms that are no identity.
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if parameter.ndim == 1 and not name.endswith(("original0", "original1", "weight_g")):
                        parameter.add_(0.2 * torch.randn(parameter.shape))
                for name, buffer in module.named_buffers():
                    if name.endswith("running_mean"):
                        buffer.normal_(0, 0.3)
                    elif name.endswith("running_var"):
                        buffer.uniform_(0.5, 2)
        return module.to(getattr(torch, self.dtype)).eval()


NETS: list[Net] = []


def rows(kind: str, table: Mapping[str, Callable[[], nn.Module]], **more: Any) -> None:
    """Note the factories of a table that share all else; units stand where their index says, or nowhere that is
    stated."""
    NETS.extend(Net(kind=kind, make=make, called=f"{kind}: {name}", **more) for name, make in table.items())


def net(kind: str, *positions: Positions, **more: Any) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Note a factory in the table."""

    def note(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        NETS.append(Net(kind=kind, make=make, positions=positions, **more))
        return make

    return note


def along(
    offset: float | Sequence[float], step: float | Sequence[float], rank: int = 2
) -> Callable[[Index], tuple[float, ...]]:
    """Centres offset + unit * step."""
    offsets = [offset] * rank if isinstance(offset, int | float) else list(offset)
    steps = [step] * rank if isinstance(step, int | float) else list(step)
    return lambda index: tuple(o + i * s for o, i, s in zip(offsets, index, steps, strict=True))


def plane(
    offset: float | Sequence[float] = 0,
    step: float | Sequence[float] = 1,
    grid: Index = SIZE,
    *,
    centre: Callable[[Index], Sequence[float]] | None = None,
    **more: Any,
) -> Positions:
    """Units of a map (B, C, *grid)."""
    return Positions(
        grid=grid,
        pick=lambda y, i: y[(slice(None), slice(None), *i)],
        centre=centre or along(offset, step, len(grid)),
        **more,
    )


def channels_last(offset: float = 0, step: float = 1, grid: Index = SIZE, **more: Any) -> Positions:
    """Units of a map (B, *grid, C)."""
    return Positions(grid=grid, pick=lambda y, i: y[(slice(None), *i)], centre=along(offset, step, len(grid)), **more)


def tokens(
    grid: Index = (8, 10),
    *,
    prefix: int = 0,
    place: Callable[[int, int], int] | None = None,
    offset: float | Sequence[float] = 1.5,
    step: float | Sequence[float] = 4,
    axes: Literal["BNC", "NBC", "BCN"] = "BNC",
    **more: Any,
) -> Positions:
    """Units of tokens, by row and column of the patch that they stand on.

    Args:
        grid: Rows and columns of patches.
        prefix: Tokens before the first one.
        place: (row, column) -> which token, without the prefix; row by row if None.
        offset: Centre of the first patch.
        step: From patch to patch.
        axes: Order of the tensor's axes.
        **more: Of :class:`Positions`.
    """

    def pick(y: Tensor, index: Index) -> Tensor:
        r, c = index
        n = prefix + (r * grid[1] + c if place is None else place(r, c))
        return {"BNC": lambda: y[:, n], "NBC": lambda: y[n], "BCN": lambda: y[:, :, n]}[axes]()

    return Positions(grid=grid, pick=pick, centre=along(offset, step), **more)


class Does(nn.Module):
    """A function as a module; what else it is given are its submodules, parameters and buffers."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def conv(i: int = 3, o: int = 4, k: int = 3, s: int = 1, **more: Any) -> nn.Conv2d:
    """A convolution that keeps the size, or divides it by ``s``."""
    return nn.Conv2d(i, o, k, s, k // 2, **more)


def patches(size: int = 4, c: int = 6) -> nn.Conv2d:
    """A patch embedding."""
    return nn.Conv2d(3, c, size, size)


def table(*shape: int) -> nn.Parameter:
    """Learned positions."""
    return nn.Parameter(torch.randn(shape))


def kind_of(x: Tensor) -> dict[str, Any]:
    """Where and in which precision a net computes."""
    return {"device": x.device, "dtype": x.dtype}
