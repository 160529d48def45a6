"""The plan of tiles: its words, and how a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from erfscope.view.extras import AXES, halo_text
from erfscope.view.words import DASH, square_text

if TYPE_CHECKING:
    from erfscope.tiling import HaloBudget, TileCost, TilePlan

#: What the names of tiles mean, but for that which was asked for.
NAMES = {
    "largest": "largest: tile that fits --memory",
    "least": "least: tile that fits --memory and computes least for the whole image",
}


def tile_headline(plan: TilePlan) -> str:
    """The answer in one line: how large the overlap must be, or that no tiles are possible."""
    if not plan.possible:
        return f"{plan.model} cannot be run on tiles: they would differ from the whole image"
    return _answer(plan)


class TileView:
    """A rich renderable: a plan, what its tiles cost, and halos that are shorter."""

    def __init__(
        self,
        plan: TilePlan,
        costs: Sequence[TileCost] = (),
        image_size: str | None = None,
        *,
        budget: HaloBudget | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.plan, self.costs, self.image_size = plan, costs, image_size
        self.budget, self.tolerance = budget, tolerance

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self.plan
        yield Text(tile_headline(plan), style="bold" if plan.possible else "bold red")
        for blocker in plan.blockers:
            item = Table.grid(padding=(0, 1, 0, 0))
            item.add_row(Text("-"), Text(blocker))
            yield item
        if plan.axes and not plan.possible:
            yield Text(f"but for that: {_answer(plan)}")
        if plan.axes:
            yield Text()
            yield _axes(plan)
        if self.costs:
            yield Text()
            yield self._costs()
        if self.budget is not None:
            yield Text()
            yield from _budget(plan, self.budget, self.tolerance or 0.0)
        yield Text()
        for note in self._notes():
            yield Text(note, style="dim")

    def _costs(self) -> Table:
        image = "" if self.image_size is None else f"tiles of\n{self.image_size}"
        grid = _grid("tile", "side, px", "step, px", "crop, px", "wasted", "memory", *([image] if image else []))
        for each in self.costs:
            sides = map(square_text, (each.tile, each.step, each.crop))
            cells = [", ".join(each.names), *sides, f"{each.wasted:.0%}", memory_text(each.memory)]
            grid.add_row(*cells, *([f"{each.tiles:,}"] if image else []))
        return grid

    def _notes(self) -> Iterator[str]:
        plan = self.plan
        name = plan.model + (f" · {plan.layer}" if plan.layer else "")
        if not plan.axes:
            yield name
            return
        left, alignment = square_text(plan.remainder), square_text(plan.alignment)
        sizes = "any size" if alignment == "1" else f"sides that leave {left} when divided by {alignment}"
        yield f"{name}: for images of {sizes}"
        yield "any phase: halo before and after, for tiles that begin at any unit"
        if self.costs:
            yield from (NAMES[name] for each in self.costs for name in each.names if name in NAMES)
            whole = "of all tiles of the image" if self.image_size is not None else "of a tile inside the image"
            yield f"wasted: share of the computing, {whole}, that gives no new output"
            yield (
                "memory: tensors of one forward pass at its worst moment, from the recorded shapes of one crop, by the"
                " cells of the crop for others; without weights"
            )
        if self.budget is not None:
            yield "share of the ERF cut off: of the unit at the border that loses most, ± standard error over images"
            yield "error at seams: RMS over the output's standard deviation, for a linear model and independent cells"


def memory_text(memory: int | None) -> str:
    """Bytes in the unit that fits."""
    if memory is None:
        return DASH
    power = min(3, max(0, (memory.bit_length() - 1) // 10))
    return f"{memory / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _answer(plan: TilePlan) -> str:
    return f"halo {halo_text(plan.halo)}, tiles begin at multiples of {square_text(plan.alignment)}"


def _grid(first: str, *others: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(first)
    for name in others:
        grid.add_column(name, justify="right")
    return grid


def _axes(plan: TilePlan) -> Table:
    grid = _grid("axis", "halo\nbefore", "halo\nafter", "any\nphase", "align-\nment", "scale", "offset", "crop")
    for name, axis in zip(AXES[len(plan.axes)], plan.axes, strict=True):
        phase = ", ".join(map(str, axis.halo_any_phase))
        cells = (*axis.halo, phase, axis.alignment, f"{float(1 / axis.stride):.4g}", axis.offset, axis.crop)
        grid.add_row(name, *map(str, cells))
    return grid


def _budget(plan: TilePlan, budget: HaloBudget, tolerance: float) -> Iterator[Text | Table]:
    """The shortest halo within a tolerance, and what halos in steps of the alignment cut off."""
    short = budget.shortest(plan, tolerance)
    yield Text(f"halo {halo_text(short)}, cuts off less than {tolerance:g} of the ERF on each side", style="bold")
    grid = _grid("halo, px", "share of the\nERF cut off", "error at seams\n(predicted)")
    step, length = max(plan.alignment), budget.share.shape[-1]
    every = max(1, -(-(length - 1) // step) // 8)
    for halo in (*range(0, length - 1, step * every), length - 1):
        shares, errors = budget.share[..., halo].ravel(), budget.se[..., halo].ravel()
        worst = int(shares.argmax())
        error = f" ± {errors[worst]:.1g}" if errors[worst] == errors[worst] else ""
        grid.add_row(str(halo), f"{shares[worst]:.2g}{error}", f"{budget.predicted(halo):.2g}")
    yield grid
