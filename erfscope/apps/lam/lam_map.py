"""The attribution map of one window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from erfscope.apps.lam.attribution import LamWindow
from erfscope.apps.lam.windows import LamPlace
from erfscope.core import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LamMap:
    """The attribution of one window of one image in one model."""

    model: str
    image: str
    window: LamWindow
    #: (*space) of the input, non-negative.
    values: FloatArray
    place: LamPlace
    #: By the names of ``SIZES`` in :mod:`erfscope.apps.lam.maps`; not-a-number where nothing is attributed.
    sizes: dict[str, float]
    #: Sum of the signed attribution over the change of the objective along the path.
    completeness: float
    #: The input (C, *space) as the model takes it; what it makes of the window, (C, size, ...); what that should be.
    picture: FloatArray = field(repr=False)
    restored: FloatArray = field(repr=False)
    target: FloatArray | None = field(default=None, repr=False)
    note: str = ""
    #: Whether the model's weights are random.
    is_random: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the input's values lie between 0 and 1."""
        return bool(self.picture.min() >= 0 and self.picture.max() <= 1)

    def record(self) -> dict[str, Any]:
        """Its numbers by name."""
        own = {"model": self.model, "image": self.image, "window": [*self.window.start, self.window.size]}
        return own | self.sizes | {"completeness": self.completeness, "trf": self.place.size_text}
