"""The candidates of a search: a measure against what it costs, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from erfscope.figures.canvas import drawing, finish, sheet, write_title
from erfscope.figures.lettering import fitted
from erfscope.figures.lines import COLOURS, tidy
from erfscope.figures.style import TWO_COLUMNS

HEIGHT, LABEL = 3.2, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One candidate."""

    text: str
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
    price: str,
    measure: str,
    goal: tuple[float | None, float | None],
    words: str,
) -> Figure:
    """Draw candidates, with names beside those of the front.

    Args:
        points: At least one, the model as it is among them.
        title: What was searched.
        price: Name of the horizontal axis.
        measure: Name of the vertical axis.
        goal: The target on the horizontal and on the vertical axis; None for none.
        words: Stand below.
    """
    with drawing():
        figure = sheet(TWO_COLUMNS)
        write_title(figure, title)
        ax = figure.subplots()
        tidy(ax)
        best = sorted((each for each in points if each.on_front), key=lambda each: each.price)
        for each in points:
            colour = COLOURS[4] if each.is_own else COLOURS[0] if each.on_front else "#aaaaaa"
            ax.errorbar(
                each.price,
                each.value,
                yerr=each.error or None,
                color=colour,
                marker="s" if each.is_own else "o",
                markersize=3.5,
                linewidth=0.8,
                gid=each.text,
                zorder=3 if each.on_front or each.is_own else 2,
            )
        ax.step(
            [each.price for each in best], [each.value for each in best], where="post", color=COLOURS[0], linewidth=0.8
        )
        for value, line in zip(goal, (ax.axvline, ax.axhline), strict=True):
            if value is not None:
                line(value, color="#444444", linestyle=(0, (1, 1.2)), linewidth=1.0, gid="target")
        right = max(each.price for each in points)
        left = min(each.price for each in points)
        for each in points:
            if each.on_front or each.is_own:
                is_right = each.price > (left + right) / 2
                text = fitted(figure, each.text, LABEL)
                ax.annotate(
                    text,
                    (each.price, each.value),
                    xytext=(-4 if is_right else 4, 4),
                    textcoords="offset points",
                    ha="right" if is_right else "left",
                    va="bottom",
                    fontsize=6,
                )
        ax.margins(x=0.08, y=0.12)
        ax.set(xlabel=price, ylabel=measure)
        finish(figure, [ax], [HEIGHT], words=[words], handles=[])
    return figure
