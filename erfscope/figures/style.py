"""The style of figures and pages: its options, each declared once. Imports no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from erfscope.errors import ErfscopeError, unknown
from erfscope.options.option import OUTPUT, Option, declared
from erfscope.options.values import numbers

#: What the values of each scale are. Signed maps keep the sign of each value. The first is the default.
SCALES = {
    "share": "share of the ERF in pixels at least as strong",
    "linear": "density, uniform map = 1",
    "log": "log10(1 + density)",
    "power": "density to the power 0.3",
}
SIGNED_SCALES = {
    **SCALES,
    "share": "share of the |ERF| in pixels at least as strong, with the sign",
    "log": "sign × log10(1 + |density|)",
    "power": "sign × |density| to the power 0.3",
}
#: What each range of colours is.
COLOURS = {"shared": "one range for all maps", "own": "each map on its own range"}
#: Width of a figure over one and over two columns of a paper, inches. Figures are no wider, so that a paper shows
#: their letters at full size.
ONE_COLUMN, TWO_COLUMNS = 3.5, 7.2
#: The widths by name, inches: 89 and 183 mm, the column and the page of most journals.
WIDTHS = {"column": ONE_COLUMN, "page": TWO_COLUMNS}
#: Colour maps that a shell offers: their lightness rises from end to end.
COLOUR_MAPS = ("inferno", "viridis", "magma", "plasma", "cividis", "gray")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureStyle:
    """The style of a figure."""

    scale: Annotated[
        str, Option("Scale of maps and curves: {words}.", OUTPUT, metavar="NAME", words=tuple(SCALES), is_closed=True)
    ] = "share"
    colours: Annotated[
        str,
        Option("Range of maps' colours: {words}.", OUTPUT, metavar="NAME", words=tuple(COLOURS), is_closed=True),
    ] = "shared"
    cmap: Annotated[
        str | None,
        Option(
            "Colour map of maps, a name of matplotlib. Default: inferno; cividis of signed maps.",
            OUTPUT,
            metavar="NAME",
            words=COLOUR_MAPS,
        ),
    ] = None
    contours: Annotated[
        Sequence[float],
        Option(
            "Outline the regions that hold so many per cent of a map, e.g. 50,90.", OUTPUT, metavar="P,P", read=numbers
        ),
    ] = ()
    #: As wide as the kind of figure needs if None.
    width: Annotated[
        str | None,
        Option(
            "Width of figures: column (89 mm) or page (183 mm).",
            OUTPUT,
            metavar="NAME",
            words=tuple(WIDTHS),
            is_closed=True,
        ),
    ] = None

    @property
    def axis(self) -> str:
        """The scale of a curve's axis: maps alone have shares."""
        return "linear" if self.scale == "share" else self.scale

    def inches(self, needed: float) -> float:
        """Width of the sheet of a figure that needs ``needed`` inches."""
        return needed if self.width is None else WIDTHS[self.width]

    def check(self) -> None:
        """Refuse values that do not exist.

        Raises:
            ErfscopeError: an unknown scale, range of colours, colour map or width, or contours that are no per cents
                between 0 and 100.
        """
        for name, each in declared(FigureStyle).items():
            each.option.refuse(name, getattr(self, name))
        if self.cmap not in (None, *COLOUR_MAPS):
            from matplotlib import colormaps

            if self.cmap not in colormaps:
                raise unknown("colour map", str(self.cmap), colormaps)
        try:
            wrong = [each for each in self.contours if not 0 < each < 100]
        except TypeError:
            raise ErfscopeError(
                f"contours are several per cents of the ERF, such as (50, 90), not {self.contours!r}"
            ) from None
        if wrong:
            raise ErfscopeError(
                f"contours are per cents of the ERF between 0 and 100, such as 50,90; {wrong[0]:g} is not"
            )

    @property
    def outlined(self) -> tuple[float, ...]:
        """The contours, each once, from the innermost one."""
        return tuple(sorted(set(self.contours)))


#: Options that figures without maps leave unused.
OF_MAPS = ("colours", "cmap", "contours")
