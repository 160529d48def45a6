"""The candidates of a search: a measure against what it costs, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from erfscope.show.figures.canvas import drawing, finish, sheet, write_title
from erfscope.show.figures.lines import COLOURS, tidy
from erfscope.show.figures.style import TWO_COLUMNS

HEIGHT = 3.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One candidate."""

    #: Its number in the words below; "" for none.
    label: str
    price: float
    value: float
    #: Standard error of its difference to the unchanged model; 0 for none.
    error: float
    on_front: bool
    is_own: bool


def front_figure(
    points: Sequence[Point],
    *,
    title: str,
    axes: tuple[str, str],
    goal: tuple[float | None, float | None],
    words: Sequence[str],
) -> Figure:
    """Draw candidates, each with its number, a line through those of the front, and the target.

    Args:
        points: At least one, the model as it is among them.
        title: What was searched.
        axes: Names of the horizontal and of the vertical axis.
        goal: The target on each of them; None for none.
        words: The names of the numbers, and conditions.
    """
    with drawing():
        figure = sheet(TWO_COLUMNS)
        write_title(figure, title)
        ax = figure.subplots()
        tidy(ax)
        for each in points:
            colour = COLOURS[4] if each.is_own else COLOURS[0] if each.on_front else "#aaaaaa"
            mark, level = "s" if each.is_own else "o", 3 if each.on_front or each.is_own else 2
            look: dict[str, Any] = {
                "color": colour,
                "marker": mark,
                "markersize": 3.5,
                "linewidth": 0.8,
                "zorder": level,
            }
            ax.errorbar(each.price, each.value, yerr=each.error or None, gid=f"candidate {each.label}", **look)
            place: dict[str, Any] = {"xytext": (4, 2), "textcoords": "offset points", "fontsize": 6}
            ax.annotate(each.label, (each.price, each.value), **place)
        best = sorted((each.price, each.value) for each in points if each.on_front)
        ax.step(*zip(*best, strict=True) if best else ([], []), where="post", color=COLOURS[0], linewidth=0.8)
        for value, line in zip(goal, (ax.axvline, ax.axhline), strict=True):
            if value is not None:
                line(value, color="#444444", linestyle=(0, (1, 1.2)), linewidth=1.0, gid="target")
        ax.margins(x=0.08, y=0.12)
        ax.set(xlabel=axes[0], ylabel=axes[1])
        keys = [
            Line2D([], [], label="the model as it is (0)", color=COLOURS[4], marker="s", linestyle="", markersize=3.5),
            Line2D([], [], label="front", color=COLOURS[0], marker="o", linewidth=0.8, markersize=3.5),
            Line2D([], [], label="other candidates", color="#aaaaaa", marker="o", linestyle="", markersize=3.5),
            Line2D([], [], label="target", color="#444444", linestyle=(0, (1, 1.2)), linewidth=1.0),
        ]
        finish(figure, [ax], [HEIGHT], words=words, handles=keys)
    return figure
