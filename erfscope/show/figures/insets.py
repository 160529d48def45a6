"""Close-ups in the corners of maps whose ERF is a dot beside others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.answer.result import Result
from erfscope.show.figures.lettering import TEXT, text_width
from erfscope.show.figures.maps import EDGE, Look, display, draw_map
from erfscope.show.view.windows import Windowed, inset_corner

#: Side of a close-up in the corner of a map, of the panel's.
INSET = 0.42


def draw_inset(ax: Axes, result: Result, shown: Windowed, look: Look, *, picture: FloatArray | None = None) -> None:
    """A close-up of a map that is drawn, in the corner where neither its unit nor its scale bar is."""
    part, close = shown.part, shown.close
    assert close is not None
    (top, bottom), (left, right) = close.inside(part)
    is_right, is_low = inset_corner(shown)
    at = (is_right * (1 - INSET), (not is_low) * (1 - INSET))
    inset = ax.inset_axes((at[0], at[1], INSET, INSET), gid="close-up")
    inset.set_axis_off()
    inset.set_anchor(f"{'S' if is_low else 'N'}{'E' if is_right else 'W'}")
    values, plain = display(close.erf, look.scale), replace(look, contours=())
    draw_map(inset, replace(result, map=close.erf, sums=None), values, plain, picture=picture, bar=False)
    edge: dict[str, Any] = {"fill": False, "linewidth": 0.7, "edgecolor": "white", "path_effects": EDGE}
    inset.add_patch(Rectangle((0, 0), 1, 1, transform=inset.transAxes, clip_on=False, **edge))
    ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, gid="close-up", **edge))
    text: dict[str, Any] = {
        "color": "white",
        "fontsize": TEXT,
        "path_effects": EDGE,
        "ha": "right" if is_right else "left",
    }
    place, words = (float(is_right), float(is_low)), shown.close_text
    if text_width(ax.figure, words) > INSET * ax.bbox.width / ax.figure.dpi:
        words = close.side_text
    offset = (-2 if is_right else 2, 3 if is_low else -3)
    where: dict[str, Any] = {"xycoords": inset.transAxes, "textcoords": "offset points"}
    ax.annotate(words, place, offset, va="bottom" if is_low else "top", **where, **text)
