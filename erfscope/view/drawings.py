"""Maps as a page draws them: images and coordinates, made where figures are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One image of a map, on one scale and one range of colours."""

    uri: str
    scale: str
    #: "shared" by all maps of the page, or "own", or both where that makes no difference.
    spans: tuple[str, ...]
    #: Text of what the first and the last colour stand for.
    least: str = ""
    peak: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A radius around the unit, in cells."""

    name: str
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A map as it is drawn: coordinates are cells of the reference, (0, 0) the centre of the first."""

    width: int
    height: float
    row: float
    col: float
    signed: bool
    sharp: bool
    #: A map of one row, drawn as a strip with lines in place of rings.
    strip: bool
    images: tuple[Shown, ...]
    #: The first input image under the map.
    overlaid: tuple[Shown, ...]
    rings: tuple[Ring, ...]
    #: x, y, width and height of the TRF; None if it is unknown or everything.
    field: tuple[float, float, float, float] | None
    #: Whether an edge of the field can be seen.
    field_seen: bool
    #: Length of the scale bar in cells.
    bar: float
    #: That a part of the map is drawn, and how many times enlarged; "" for the whole map.
    zoom: str = ""

    def uri(self, scale: str) -> str:
        """The map on one scale, in its own range."""
        return next(shown.uri for shown in self.images if shown.scale == scale and "own" in shown.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """The drawings of a report, by the positions of its results; None where a result has none."""

    maps: tuple[Drawing | None, ...]
    #: Addresses of the figures of all units of a layer.
    positions: tuple[str | None, ...]
    #: Addresses of the colours themselves, of signed maps and of others, where there are any.
    ramps: Mapping[bool, str]
    #: The scales that a page offers, and the one that it opens with.
    scales: tuple[str, ...]
    scale: str
    #: The range of colours that a page opens with.
    span: str
