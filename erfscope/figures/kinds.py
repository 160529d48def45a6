"""The kinds of figures by name: what each draws, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.figures import panels
from erfscope.figures.canvas import check_suffix, drawing, figure_bytes, save
from erfscope.figures.curves import ALPHA, SIZES, TRAINING, depth, unfit_depth
from erfscope.figures.pixels import check_colours, check_scale
from erfscope.figures.profile import profile, unfit_profile
from erfscope.figures.units import positions, unfit_positions, unfit_units, units
from erfscope.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of figure."""

    #: Draws results that fit; keywords are the scale and, of kinds with maps, their colours.
    draw: Callable[..., Figure]
    #: What it needs and the results lack, in words; None where it can be drawn.
    unfit: Callable[[Sequence[Result]], str | None]
    #: Whether it shows maps, which have a range of colours.
    maps: bool = False


#: Every kind by its name.
FIGURES: dict[str, Kind] = {
    "panel": Kind(draw=panels.panel, unfit=panels.unfit_panel, maps=True),
    "overlay": Kind(draw=panels.overlay, unfit=panels.unfit_overlay, maps=True),
    "profile": Kind(draw=profile, unfit=unfit_profile),
    "depth": Kind(draw=depth, unfit=unfit_depth),
    "alpha": Kind(draw=ALPHA.draw, unfit=ALPHA.unfit),
    "sizes": Kind(draw=SIZES.draw, unfit=SIZES.unfit),
    "training": Kind(draw=TRAINING.draw, unfit=TRAINING.unfit),
    "units": Kind(draw=units, unfit=unfit_units, maps=True),
    "positions": Kind(draw=positions, unfit=unfit_positions),
}
#: What a folder gets besides a panel per result, where it fits.
TOGETHER = ("panel", "profile", "depth", "alpha", "sizes", "training", "units", "positions")


def figure_of(
    results: Sequence[Result], kind: str = "panel", *, scale: str = "linear", colours: str = "shared", path: str | Path | None = None
) -> Figure:
    """Draw results.

    Args:
        results: What to draw; results that the kind cannot show, such as those without a map, are left out.
        kind: A name in ``FIGURES``.
        scale: ``"linear"``, ``"log"`` or ``"power"`` (exponent 0.3), for display only and said on the figure.
        colours: ``"shared"``, one range for all maps, or ``"own"``, a range for each; curves have none.
        path: Where to save, .png, .svg or .pdf; nowhere if None. A file of that name is replaced.

    Returns:
        The figure; it belongs to no pyplot state.

    Raises:
        ErfscopeError: unknown kind, scale or range of colours, results that do not fit the kind, or a file that cannot be written.
        MeasurementError: results of which nothing can be drawn.
    """
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    check_scale(scale)
    check_colours(colours)
    if path is not None:
        check_suffix(Path(path))
    needed = FIGURES[kind].unfit(results)
    if needed is not None:
        others = ", ".join(fitting(results))
        if not others:
            if len(results) == 1 and results[0].error is not None:
                raise results[0].failure("has no map to draw")
            raise MeasurementError("there is no map to draw: no result is usable, or none was stored with its map")
        raise ErfscopeError(f"a figure of kind {kind!r} needs {needed}; kinds that fit these results: {others}")
    with drawing():
        figure = FIGURES[kind].draw(results, scale=scale, **({"colours": colours} if FIGURES[kind].maps else {}))
    if path is not None:
        save(figure, Path(path))
    return figure


def fitting(results: Sequence[Result]) -> list[str]:
    """The kinds that can show these results."""
    return [name for name, kind in FIGURES.items() if kind.unfit(results) is None]


def panel(results: Sequence[Result], *, path: str | Path | None = None, scale: str = "linear") -> Figure:
    """:func:`figure_of` of kind ``"panel"``: every map on one colour scale with its marks."""
    return figure_of(results, "panel", scale=scale, path=path)


def png_bytes(results: Sequence[Result], *, scale: str = "linear") -> bytes:
    """The panel as a PNG."""
    return figure_bytes(panel(results, scale=scale), ".png")


def folder_figures(
    results: Sequence[Result], *, kind: str | None = None, scale: str = "linear", colours: str = "shared"
) -> Iterator[tuple[str, bytes]]:
    """The figures of a report's folder: a panel per result, and of all results together every kind that fits.

    Args:
        results: All results of the report.
        kind: A kind that must be among them.
        scale: As for :func:`figure_of`.
        colours: Likewise.

    Yields:
        (file name, PNG bytes). A panel is called as its result's id, the others as their kind.

    Raises:
        ErfscopeError: results that do not fit ``kind``.
    """
    for result in results:
        if result.map is not None:
            yield f"{result.id}.png", png_bytes([result], scale=scale)
    chosen = [name for name in fitting(results) if name in TOGETHER and (name != "panel" or len(results) > 1)]
    taken = {result.id.lower() for result in results}
    for name in dict.fromkeys([*chosen, *([] if kind is None else [kind])]):
        # Ids made by erfscope hold a dash; those of a report from elsewhere may be anything.
        free = next(each for each in (name, *(f"{name}_{number}" for number in range(len(taken)))) if each not in taken)
        yield f"{free}.png", figure_bytes(figure_of(results, name, scale=scale, colours=colours), ".png")
