"""How figures may be drawn: scales, ranges of colours, widths and contours. Imports no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from erfscope.errors import ErfscopeError, unknown

#: What is shown for every scale, in words for a figure; of signed maps the sign is kept beside it. The first is the
#: default.
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
DEFAULT_SCALE = "share"
#: Ranges of colours, in words for a figure.
COLOURS = {"shared": "one range for all maps", "own": "each map on its own range"}
#: Width of a figure over one and over two columns of a paper, inches. Figures are no wider, so that nobody has to
#: shrink their letters.
ONE_COLUMN, TWO_COLUMNS = 3.5, 7.2
#: What a width is called, in inches: 89 and 183 mm, the column and the page of most journals.
WIDTHS = {"column": ONE_COLUMN, "page": TWO_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureStyle:
    """How a figure is drawn."""

    #: A name in ``SCALES``.
    scale: str = "share"
    #: ``"shared"``, one range of colours for all maps, or ``"own"``.
    colours: str = "shared"
    #: Per cents of the ERF whose highest-density regions are outlined on maps.
    contours: Sequence[float] = ()
    #: A name in ``WIDTHS``; as wide as the kind of figure needs if None.
    width: str | None = None

    @property
    def axis(self) -> str:
        """The scale of a curve's axis: maps alone have shares."""
        return "linear" if self.scale == "share" else self.scale

    def inches(self, needed: float) -> float:
        """Width of the sheet, where the figure needs so much."""
        return needed if self.width is None else WIDTHS[self.width]

    def check(self) -> None:
        """Refuse what does not exist.

        Raises:
            ErfscopeError: an unknown scale, range of colours or width, or contours that are no per cents between 0 and
                100.
        """
        check_scale(self.scale)
        if self.colours not in COLOURS:
            raise unknown("range of colours", self.colours, COLOURS)
        if self.width is not None and self.width not in WIDTHS:
            raise unknown("width", self.width, WIDTHS)
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


def check_scale(scale: str) -> None:
    """Refuse a scale that does not exist.

    Raises:
        ErfscopeError: names the scales there are.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
