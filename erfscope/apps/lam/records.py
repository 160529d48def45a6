"""The attribution map of one window, and its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from erfscope.apps.lam.windows import LamPlace
from erfscope.core import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LamRecord:
    """The numbers of one window of one image in one model, as files hold them."""

    model: str
    image: str
    #: The window's first pixel along each axis, and its side.
    window: tuple[int, ...]
    #: See :data:`erfscope.apps.lam.sizes.SIZES`; None where nothing is attributed.
    di: float | None
    r50_px: float | None
    r90_px: float | None
    area_px: float | None
    #: Sum of the signed attribution over the change of the objective along the path; None where that does not change.
    completeness: float | None
    #: Sides of the box of receptive fields.
    trf: str
    #: What was done to the image that a reader must know.
    note: str = ""
    #: Whether the model's weights are random.
    is_random: bool = False

    @property
    def window_text(self) -> str:
        """The window as it is written."""
        return ",".join(map(str, self.window))


@dataclass(frozen=True, slots=True, kw_only=True)
class LamMap(LamRecord):
    """The attribution of one window."""

    #: (*space) of the input, non-negative.
    values: FloatArray = field(repr=False)
    place: LamPlace
    #: The input (C, *space) as the model takes it; what it makes of the window, (C, size, ...); what that should be.
    picture: FloatArray = field(repr=False)
    restored: FloatArray = field(repr=False)
    target: FloatArray | None = field(default=None, repr=False)
