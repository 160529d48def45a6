"""The style of figures and pages: its options, each declared once. Imports no matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from erfscope.core.request.option import OUTPUT, Option, declared
from erfscope.core.request.values import AUTO, WHOLE, numbers, zoom_side
from erfscope.core.values.errors import ErfscopeError, unknown

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
#: Widths of a figure by name, mm: a column of CVPR's, the text of NeurIPS', and both columns of CVPR's page. Figures
#: that have no width are as wide as one of them, so that a paper shows their letters at full size.
WIDTHS = {"column": 83.0, "text": 139.7, "page": 174.0}
#: The same, inches.
ONE_COLUMN, ONE_TEXT, TWO_COLUMNS = (width / 25.4 for width in WIDTHS.values())
#: The narrowest figure and the widest, mm: letters need the one, memory the other.
NARROWEST, WIDEST = 60.0, 600.0
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
    zoom: Annotated[
        str | float,
        Option(
            "Part of the input on maps: auto, as much as the largest ERF needs; none, all of it; or a window's side, a"
            " number in the unit of the axes (px of images without a spacing).",
            OUTPUT,
            metavar="auto|none|SIDE",
            words=(AUTO, WHOLE),
        ),
    ] = AUTO
    #: As many as have room if None.
    columns: Annotated[
        int | None,
        Option(
            "Maps side by side in a panel, overlay or strip, as far as they fit. Default: as many as fit.",
            OUTPUT,
            metavar="N",
            least=1,
        ),
    ] = None
    #: As wide as the kind of figure needs if None.
    width: Annotated[
        str | None,
        Option(
            "Width of figures: column (83 mm), text (139.7 mm), page (174 mm), or millimetres such as 89mm.",
            OUTPUT,
            metavar="NAME|NNmm",
            words=tuple(WIDTHS),
        ),
    ] = None
    #: That of matplotlib if None.
    font: Annotated[
        str | None,
        Option("Font of figures, a name that matplotlib knows. Default: DejaVu Sans.", OUTPUT, metavar="NAME"),
    ] = None
    conditions: Annotated[
        bool, Option("Write conditions and the meaning of colours under figures too, not only into captions.", OUTPUT)
    ] = False

    @property
    def axis(self) -> str:
        """The scale of a curve's axis: maps alone have shares."""
        return "linear" if self.scale == "share" else self.scale

    @property
    def whole_zoom(self) -> str | float:
        """The zoom of figures that show the whole input unless a side is given."""
        return WHOLE if self.zoom == AUTO else self.zoom

    def inches(self, needed: float) -> float:
        """Width of the sheet of a figure that needs ``needed`` inches."""
        return needed if self.width is None else width_mm(self.width) / 25.4

    def side_by_side(self, least: float) -> int:
        """How many panels of at least so many inches have room side by side; over a page if there is no width."""
        return max(1, int(self.inches(TWO_COLUMNS) / least))

    def check(self) -> None:
        """Refuse values that do not exist.

        Raises:
            ErfscopeError: an unknown scale, range of colours, colour map, zoom, width or font, less than one column, or
                contours that are no per cents between 0 and 100.
        """
        zoom_side(self.zoom)
        for name, each in declared(FigureStyle).items():
            value = getattr(self, name)
            if each.type is bool and not isinstance(value, bool):
                raise ErfscopeError(f"{name} is True or False, not {value!r}")
            each.option.refuse(name, value)
        if self.cmap not in (None, *COLOUR_MAPS):
            from matplotlib import colormaps

            if self.cmap not in colormaps:
                raise unknown("colour map", str(self.cmap), colormaps)
        if isinstance(self.columns, bool) or not isinstance(self.columns, int | None):
            raise ErfscopeError(f"columns is a whole number, such as 3, not {self.columns!r}")
        if self.width is not None:
            width_mm(self.width)
        if self.font is not None:
            from matplotlib.font_manager import fontManager

            if self.font not in fontManager.get_font_names():
                raise unknown("font", self.font, fontManager.get_font_names())
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


def width_mm(width: str) -> float:
    """A width of figures in millimetres.

    Args:
        width: A name in :data:`WIDTHS`, or a number of millimetres such as ``"89mm"``.

    Raises:
        ErfscopeError: neither of them, or a sheet that is too narrow for letters or too wide for memory.
    """
    if width in WIDTHS:
        return WIDTHS[width]
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?mm", str(width))
    if found is None:
        raise unknown("width", str(width), [*WIDTHS, "89mm"])
    if not NARROWEST <= float(found[1]) <= WIDEST:
        raise ErfscopeError(f"a figure is {NARROWEST:g} to {WIDEST:g} mm wide, not {width}")
    return float(found[1])


#: Options that figures without maps leave unused.
OF_MAPS = ("colours", "cmap", "contours", "columns")
