"""The table of the kinds of figures. The module that a row names holds two functions: one draws the kind, the other
returns the need of it that results do not meet. Imports no matplotlib.

To add one: a row here with its caption, and ``KIND`` and ``unfit_KIND`` in the module that the row names. Folders of
reports, the tests of their files and ``docs/reports.md`` follow the table. Where it needs several values of a new
option, ``check_figure`` of ``show/figures/asked.py`` too."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erfscope.core.values.errors import ErfscopeError
from erfscope.show.figures.style import WIDTHS, FigureStyle, width_mm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from erfscope.core.answer.result import Result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A figure, and what is to be said of it."""

    #: It belongs to no pyplot state.
    figure: Figure
    #: Conditions and the meaning of marks and colours, for its caption; with the option ``conditions`` they stand under
    #: the panels too.
    words: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureKind:
    """One kind of figure."""

    #: Its name, which is that of the function that draws it; ``unfit_NAME`` returns the need that results do not meet.
    name: str
    #: The module of this room that has both functions.
    module: str
    #: What it shows, for the documentation.
    shows: str
    #: The beginning of its caption.
    caption: str
    #: What it needs, for refusals.
    needs: str
    #: Whether it shows maps, which have colours.
    maps: bool = False
    #: Options of which one has to have several values, whatever is measured; () where each result can be drawn.
    several: tuple[str, ...] = ()
    #: The narrowest width that it fits into, mm.
    narrowest: float = 0.0
    #: Whether a report's folder has it wherever results fit.
    in_folder: bool = True

    def draw(self, results: Sequence[Result], style: FigureStyle) -> Drawn:
        """Draw results that fit."""
        drawn: Drawn = self._function(self.name)(results, style)
        return drawn

    def unfit(self, results: Sequence[Result]) -> str | None:
        """The need of the kind that the results do not meet; None where it can be drawn."""
        lacking: str | None = self._function(f"unfit_{self.name}")(results)
        return lacking

    def _function(self, name: str) -> Any:
        return getattr(importlib.import_module(f"erfscope.show.figures.{self.module}"), name)

    def fits(self, width: str | None) -> bool:
        """Whether it can be drawn so wide; None is as wide as it needs."""
        return width is None or width_mm(width) >= self.narrowest


KINDS = (
    FigureKind(
        name="panel",
        module="panels",
        shows="every map, with unit, r50 and r90 rings, theoretical receptive field (TRF), scale bar",
        caption="Effective receptive fields",
        needs="a result with a map",
        maps=True,
    ),
    FigureKind(
        name="overlay",
        module="panels",
        shows="the same over the first image",
        caption="Effective receptive fields over the first input image",
        needs="a map of the image (--wrt image); a map of a layer's cells does not lie on the image",
        maps=True,
        in_folder=False,
    ),
    FigureKind(
        name="strip",
        module="panels",
        shows="the maps of one model side by side, by layer or by input size, all at one scale of lengths",
        caption="Effective receptive fields by layer and input size",
        needs="two or more layers or input sizes of a model, such as --layer stages or --input-size 96,128",
        maps=True,
        several=("layer", "input_size"),
    ),
    FigureKind(
        name="profile",
        module="profile",
        shows="density and enclosed mass by distance from the unit, one line per result",
        caption="Density and enclosed share of effective receptive fields by the distance to the unit",
        needs="a result with a map that is not zero, of a unit with a place",
    ),
    FigureKind(
        name="depth",
        module="curves",
        shows="r50, r90, the TRF and the input's side against the layer; shaded behind a TRF that covers the input",
        caption="Radii of effective receptive fields by layer",
        needs="two or more layers of a model, such as --layer stages, with units that have a place",
        several=("layer",),
    ),
    FigureKind(
        name="alpha",
        module="curves",
        shows="radii against the share of inserted blocks",
        caption="Radii of effective receptive fields by the share of inserted blocks",
        needs="a model with an inserted block at two or more alphas, such as --alpha 0,0.5,1",
        several=("alpha",),
    ),
    FigureKind(
        name="sizes",
        module="curves",
        shows="radii against the input size",
        caption="Radii of effective receptive fields by input size",
        needs="two or more input sizes, such as --input-size 160,224",
        several=("input_size",),
    ),
    FigureKind(
        name="training",
        module="curves",
        shows="radii against the step of a training",
        caption="Radii of effective receptive fields in training",
        needs="a model at two or more steps of a training, as from compare --of or an ErfMonitor",
        several=("checkpoint",),
    ),
    FigureKind(
        name="units",
        module="units",
        shows="several units of one image at their places",
        caption="Effective receptive fields of several units of one layer",
        needs="two or more units of one layer, such as --unit grid:3",
        maps=True,
        several=("unit",),
    ),
    FigureKind(
        name="positions",
        module="units",
        shows="r50 and context_r50 of every unit of a layer, at the units' centres",
        caption="Sizes of the effective receptive fields of all units of a layer",
        needs="the sizes of all units of a layer (--unit all, not interrupted), of which one has a gradient",
        several=("every unit",),
        narrowest=WIDTHS["text"],
    ),
)
#: Every kind by its name.
FIGURES = {kind.name: kind for kind in KINDS}


def refuse_unasked(kind: str, several: Mapping[str, bool], *, width: str | None) -> None:
    """Refuse a kind of figure that the options rule out.

    Args:
        kind: A name in ``FIGURES``.
        several: Which options have several values.
        width: That of the sheet, as for :func:`width_mm`; as wide as the kind needs if None.

    Raises:
        ErfscopeError: it needs several values of an option, or a wider sheet.
    """
    refuse_narrow(kind, width)
    if FIGURES[kind].several and not any(several[name] for name in FIGURES[kind].several):
        raise ErfscopeError(f"a figure of kind {kind!r} needs {FIGURES[kind].needs}")


def refuse_narrow(kind: str, width: str | None) -> None:
    """Refuse a sheet that is too narrow for a kind of figure.

    Raises:
        ErfscopeError: names the width that it needs.
    """
    if not FIGURES[kind].fits(width):
        raise ErfscopeError(
            f"a figure of kind {kind!r} needs a width of {FIGURES[kind].narrowest:g} mm; add --width page, or leave"
            " --width out"
        )
