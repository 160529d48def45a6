"""The plan of tiles: its words, its tables and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from erfscope.apps.tile.budget import HaloBudget
from erfscope.apps.tile.costs import TileCost
from erfscope.core import IMAGE, Tiling
from erfscope.show import (
    DASH,
    Column,
    Note,
    Table,
    Value,
    brief,
    halo_text,
    images_text,
    over_text,
    random_weights,
    rows_of,
    sides_text,
    square_text,
    weights_condition,
)

#: What the names of tiles mean.
NAMES = {
    "asked": "asked: tile of --tile, {default} unless it is given",
    "largest": "largest: tile that fits --memory",
    "least": "least: tile that fits --memory and computes least for the whole {noun}",
}


def tile_headline(plan: Tiling) -> str:
    """The answer in one line: how large the overlap must be, or that no tiles are possible."""
    if not plan.possible:
        return f"{plan.model} cannot be run on tiles: they would differ from the whole {plan.input_axes.noun}"
    return _answer(plan)


def tile_parts(
    plan: Tiling,
    costs: Sequence[TileCost] = (),
    image_size: str | None = None,
    *,
    budget: HaloBudget | None = None,
    tolerance: float | None = None,
) -> Iterator[Table | Note]:
    """A plan, what its tiles cost, and halos that are shorter: lines of text and tables."""
    empty = Note(text="")
    yield Note(text=tile_headline(plan), style="bold" if plan.possible else "bold red")
    yield from (Note(text=blocker, label="-") for blocker in plan.blockers)
    if plan.axes and not plan.possible:
        yield Note(text=f"but for that: {_answer(plan)}")
    if text := _in_units(plan):
        yield Note(text=text)
    if plan.axes:
        yield from (empty, axes_table(plan))
    if costs:
        yield from (empty, costs_table(plan, costs, image_size))
    if budget is not None:
        yield from (empty, Note(text=budget_headline(plan, budget, tolerance or 0.0), style="bold"))
        yield from (weights_note(budget), empty, budget_table(plan, budget))
    if plan.possible and plan.wasted > 0.5:
        smaller = max(map(max, plan.halo)) // 2
        yield Note(
            text="more than half of the computing gives nothing new: take larger tiles, or let `erfscope advise"
            f" {plan.model} --target 'halo<={smaller}'` show what a smaller halo costs",
            style="yellow",
        )
    yield empty
    for text in _meanings(plan, costs, image_size, budget):
        yield Note(text=text, style="dim")


def budget_headline(plan: Tiling, budget: HaloBudget, tolerance: float) -> str:
    """The shortest halo that cuts off less than a share, and how it was rounded; or that none does."""
    least, short, cells = budget.least(plan, tolerance), budget.shortest(plan, tolerance), plan.input_axes
    if least is None or short is None:
        share = f"{budget.longest_share(plan):.2g} of the ERF on a side"
        return f"no halo reaches {tolerance:g}: even the longest, {halo_text(plan.halo, cells)}, cuts off {share}"
    text = f"halo {halo_text(short, cells)}, cuts off less than {tolerance:g} of the ERF on each side"
    if short == least:
        return text
    why = f"since crops begin and end at multiples of {square_text(plan.alignment)}"
    return f"{text}; rounded up from {halo_text(least, cells)}, {why}"


def weights_note(budget: HaloBudget) -> Note:
    """The weights and the images with which a budget was measured; a warning where they are not trained."""
    if (result := budget.measured) is None:
        return Note(text="measured with weights that are not known")
    untrained = random_weights(result)
    text = f"measured over {images_text(result)}; {untrained or weights_condition(result).alone}"
    return Note(text=text, style="bold yellow" if untrained else "")


def errors_note(plan: Tiling, budget: HaloBudget) -> str:
    """What the errors of a budget's shares are over; "" where there are none."""
    if np.isnan(budget.se).all():
        return ""
    over, result = f"{plan.input_axes.noun}s", budget.measured
    return f"± standard error over {over if result is None else over_text([result], result.se_over)}"


def _in_units(plan: Tiling) -> str:
    """The halo and the alignment in the units of the input's axes; "" where these are its cells."""
    if plan.space is None or not plan.axes or set(plan.space.spacing) == {1.0}:
        return ""
    sides = list(zip(plan.space.spacing, plan.space.units, plan.axes, strict=True))

    def lengths(numbers: Iterable[float]) -> str:
        return " x ".join(
            f"{brief(number * step)} {unit}" for number, (step, unit, _) in zip(numbers, sides, strict=True)
        )

    before, after = zip(*plan.halo, strict=True)
    multiples = lengths(axis.alignment for *_, axis in sides)
    return f"{lengths(before)} before, {lengths(after)} after, multiples of {multiples}"


def _sizes(plan: Tiling) -> str:
    """The inputs that a plan holds for."""
    inputs = f"{plan.input_axes.noun}s"
    left, alignment = square_text(plan.remainder), square_text(plan.alignment)
    sides, are = ("length", "is a multiple") if len(plan.axes) == 1 else ("sides", "are multiples")
    sides = "height and width" if len(plan.axes) == 2 else sides
    if alignment == "1":
        return f"{inputs} of any {'length' if len(plan.axes) == 1 else 'size'}"
    if not any(plan.remainder):
        return f"{inputs} whose {sides} {are} of {alignment}"
    return f"{inputs} whose {sides} {'leaves' if len(plan.axes) == 1 else 'leave'} {left} when divided by {alignment}"


def _meanings(
    plan: Tiling, costs: Sequence[TileCost], image_size: str | None, budget: HaloBudget | None
) -> Iterator[str]:
    name = plan.model + (f" · {plan.layer}" if plan.layer else "") + (f" · {plan.wrt}" if plan.wrt != IMAGE else "")
    if not plan.axes:
        yield name
        return
    yield f"{name}: valid for {_sizes(plan)}"
    cut, alignment = plan.input_axes, square_text(plan.alignment)
    only = "" if alignment == "1" else f", not only at multiples of {alignment}"
    yield f"halo: of all paths, for any weights; any phase: the halo needed if tiles may begin anywhere{only}"
    steps = "" if alignment == "1" else f", in whole steps of {sides_text(cut, plan.alignment, square=True)}"
    tile, cell = sides_text(cut, plan.tile, square=True), cut.one_cell
    yield f"crop: what is run for a tile of {tile} (--tile N for another), with its halo{steps}"
    yield f"scale: units of the output for each {cell} of the input; offset: the {cell} at which the output begins"
    if costs:
        default = sides_text(cut, (256,) * len(plan.axes), square=True)
        yield from (
            NAMES[name].format(default=default, noun=cut.noun) for each in costs for name in each.names if name in NAMES
        )
        whole = f"of all tiles of the {cut.noun}" if image_size is not None else f"of a tile inside the {cut.noun}"
        yield f"wasted: share of the computing, {whole}, that gives no new output"
        yield (
            "memory: tensors of one forward pass at its worst moment, from the recorded shapes of one crop, by the"
            " cells of the crop for others; without weights"
        )
    if budget is not None:
        parts = ("share of the ERF cut off: of the unit at the border that loses most", errors_note(plan, budget))
        yield ", ".join(filter(None, parts))
        yield "error at seams: RMS over the output's standard deviation, for a linear model and independent cells"


def memory_text(memory: int | None) -> str:
    """Bytes in the unit that fits."""
    if memory is None:
        return DASH
    power = min(3, max(0, (memory.bit_length() - 1) // 10))
    return f"{memory / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _answer(plan: Tiling) -> str:
    of = "" if plan.wrt == IMAGE else f"{plan.wrt}: "
    return (
        f"{of}halo {halo_text(plan.halo, plan.input_axes)}, tiles begin at multiples of {square_text(plan.alignment)}"
    )


def _table(names: Sequence[str], lines: Iterable[Sequence[Value]]) -> Table:
    first, *others = names
    columns = (Column(name=first, folds=True), *(Column(name=name, kind="number", folds=True) for name in others))
    return Table(columns=columns, rows=rows_of(lines))


def axes_table(plan: Tiling) -> Table:
    """The plan along each axis."""
    names = ("axis", "halo\nbefore", "halo\nafter", "any\nphase", "align-\nment", "scale", "offset", "crop")
    lines = []
    for name, axis in zip(plan.input_axes.names, plan.axes, strict=True):
        phase = ", ".join(map(str, axis.halo_any_phase))
        lines.append((name, *axis.halo, phase, axis.alignment, f"{float(1 / axis.stride):.4g}", axis.offset, axis.crop))
    return _table(names, lines)


def costs_table(plan: Tiling, costs: Sequence[TileCost], image_size: str | None) -> Table:
    """The tiles that can be taken and what each costs; how many an image needs, where its size is given."""
    # Of a clip the first number is in frames, as in the table of the axes.
    unit = "" if plan.input_axes.has_frames else f", {plan.input_axes.cell}"
    names = ["tile", *(name + unit for name in ("side", "step", "crop")), "wasted", "memory"]
    lines = []
    for each in costs:
        sides = map(square_text, (each.tile, each.step, each.crop))
        cells = [", ".join(each.names), *sides, f"{each.wasted:.0%}", memory_text(each.memory)]
        lines.append(cells if image_size is None else [*cells, f"{each.tiles:,}"])
    return _table(names if image_size is None else [*names, f"tiles of\n{image_size}"], lines)


def budget_table(plan: Tiling, budget: HaloBudget) -> Table:
    """What halos in steps of the alignment cut off."""
    lines = []
    step, length = max(plan.alignment), budget.share.shape[-1]
    every = max(1, -(-(length - 1) // step) // 8)
    for halo in (*range(0, length - 1, step * every), length - 1):
        shares, errors = budget.share[..., halo].ravel(), budget.se[..., halo].ravel()
        worst = int(shares.argmax())
        error = f" ± {errors[worst]:.1g}" if errors[worst] > 0 else ""
        lines.append((str(halo), f"{shares[worst]:.2g}{error}", f"{budget.predicted(halo):.2g}"))
    return _table((f"halo, {plan.input_axes.cells}", "share of the\nERF cut off", "error at seams\n(predicted)"), lines)


def plan_json(
    plan: Tiling, costs: Sequence[TileCost], *, budget: HaloBudget | None, tolerance: float | None
) -> dict[str, Any]:
    """The plan as JSON values; sizes are in input cells, one entry per axis."""
    names = ("halo", "halo_any_phase", "alignment", "remainder", "scale", "offset", "lost", "tile", "step", "crop")
    document: dict[str, Any] = {"schema": "erfscope-tile-1"} | ({} if plan.wrt == IMAGE else {"wrt": plan.wrt})
    document |= {name: getattr(plan, name) for name in ("model", "layer", "possible", "blockers", "memory")}
    # The exact halo holds for any weights; a shorter one for those with which it was measured.
    document |= {"weights": "any"} | {name: getattr(plan, name) for name in names}
    if plan.space is not None:
        document |= {"axes": plan.space.names, "spacing": plan.space.spacing, "units": plan.space.units}
    columns = ("names", "tile", "step", "crop", "memory", "tiles", "wasted")
    document["tiles"] = [{name: getattr(each, name) for name in columns} for each in costs]
    if budget is not None and tolerance is not None:
        se = [[[None if each != each else each for each in side] for side in axis] for axis in budget.se.tolist()]
        shorter: dict[str, Any] = {"tolerance": tolerance, "halo": budget.shortest(plan, tolerance)}
        shorter |= {"least": budget.least(plan, tolerance)}
        if budget.measured is not None:
            shorter |= {"weights": asdict(budget.measured.weights), "images": budget.measured.input.n_images}
        document["budget"] = shorter | {"share": budget.share.tolist(), "se": se, "seam": budget.seam.tolist()}
    return document
