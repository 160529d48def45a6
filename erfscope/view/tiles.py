"""Words of plans of tiles, for the terminal and for figures."""

from __future__ import annotations

from collections.abc import Sequence

from erfscope.view.words import square_text

AXES = {1: ("cells",), 2: ("rows", "columns"), 3: ("planes", "rows", "columns")}


def halo_text(halo: Sequence[tuple[int, int]]) -> str:
    """What tiles need beyond their own, before and after them, along each axis."""
    before, after = zip(*halo, strict=True)
    return f"{square_text(before)} px before, {square_text(after)} px after"
