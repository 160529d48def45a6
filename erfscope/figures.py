"""Maps as pictures: one panel per result on one scale, with the unit, the r50 and r90 rings and the theoretical field drawn on it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from erfscope.erfmap import ErfMap, FloatArray
from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.result import Result
from erfscope.tables import convention_text, size_text, with_error

SCALES = ("linear", "log", "power")
RING, FAR_RING, FIELD = "#ffffff", "#7fd4ff", "#ffb000"
COLUMNS = 4
#: Values above this quantile are shown as the brightest colour, so that a few pixels do not darken all others.
BRIGHTEST = 0.999


def panel(results: Sequence[Result], *, path: str | Path | None = None, scale: str = "linear") -> Figure:
    """One panel per result, all on one colour scale.

    Args:
        results: What to draw; results without a map are left out.
        path: Where to save, .png, .svg or .pdf; nowhere if None.
        scale: ``"linear"``, ``"log"`` or ``"power"`` (exponent 0.3), for display only and said on the figure.

    Returns:
        The figure; it belongs to no pyplot state.

    Raises:
        ErfscopeError: unknown scale.
        MeasurementError: no result has a map.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    shown = [result for result in results if result.map is not None]
    if not shown:
        raise MeasurementError("there is no map to draw: no result is usable")
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(4.4 * columns + 0.4, 4.9 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    views = [displayed(result.map.plane, scale) for result in shown if result.map is not None]
    peak = max(float(np.quantile(np.abs(view), BRIGHTEST)) for view in views) or 1.0
    signed = any(result.scale == "signed" for result in shown)
    norm = Normalize(vmin=-peak if signed else 0.0, vmax=peak)
    image = None
    axes = []
    for number, (result, view) in enumerate(zip(shown, views, strict=True)):
        ax = figure.add_subplot(rows, columns, number + 1)
        image = ax.imshow(view, cmap="RdBu_r" if signed else "inferno", norm=norm, interpolation="nearest")
        _annotate(ax, result)
        axes.append(ax)
    assert image is not None
    words = {"linear": "density relative to the uniform map", "log": "log10(1 + density)", "power": "density to the power 0.3"}
    bar = figure.colorbar(image, ax=axes, shrink=0.75, pad=0.02)
    bar.set_label(f"{words[scale]} ({' / '.join(dict.fromkeys(r.scale for r in shown))}; brightest 0.1 % cut)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    if path is not None:
        save(figure, Path(path))
    return figure


def displayed(erf: ErfMap, scale: str) -> FloatArray:
    """Values as shown: density relative to the uniform map, so that maps of different sizes share one scale."""
    density = erf.values * erf.values.size
    if scale == "log":
        return np.asarray(np.sign(density) * np.log10(1 + np.abs(density)), dtype=np.float64)
    if scale == "power":
        return np.asarray(np.sign(density) * np.abs(density) ** 0.3, dtype=np.float64)
    return density


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a .png, .svg or .pdf file, whole or not at all.

    Raises:
        ErfscopeError: another suffix.
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ErfscopeError(f"a figure is saved as .png, .svg or .pdf, not {path.suffix or path.name!r}")
    from erfscope.storage import write_bytes

    write_bytes(path, figure_bytes(figure, path.suffix), force=True)


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure as the bytes of a file of that suffix."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix.lower().lstrip("."), dpi=150)
    return buffer.getvalue()


def png_bytes(results: Sequence[Result]) -> bytes:
    """The panel as a PNG."""
    return figure_bytes(panel(results), ".png")


def _annotate(ax: Any, result: Result) -> None:
    """Title, caption, unit, rings and theoretical field."""
    assert result.map is not None
    erf = result.map.plane
    height, width = erf.values.shape
    row, col = erf.center_px
    marks = []
    for name, colour, word in (("r50", RING, "white"), ("r90", FAR_RING, "blue")):
        radius = result.measures.get(name)
        if radius is not None and isinstance(radius.value, float):
            ax.add_patch(Circle((col, row), radius.value, fill=False, color=colour, linewidth=1.2))
            marks.append(f"{name} {with_error(radius.value, radius.se)} ({word})")
    ax.plot([col], [row], marker="+", color=RING, markersize=8, markeredgewidth=1.2, linestyle="none")
    trf = erf.trf
    if trf is not None and not trf.is_global:
        (top, bottom), (left, right) = trf.box_px
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left + 1, bottom - top + 1, fill=False, color=FIELD, linestyle="--"))
        inside = top >= 0 or left >= 0 or bottom < height or right < width
        marks.append(f"field {size_text(trf.size_px)} ({'dashed' if inside else 'outside'})")
    ax.set_xlim(-0.5, width - 0.5)
    ax.set_ylim(height - 0.5, -0.5)
    ax.tick_params(labelsize=7)
    unit = "" if result.unit is None else f", unit {','.join(str(i) for i in result.unit.index)}"
    ax.set_title(_literal(f"{result.label} · {result.layer}{unit}"), fontsize=9)
    ax.set_xlabel(_literal(f"{_caption(result)}\n{' · '.join(marks)}"), fontsize=7)


def _caption(result: Result) -> str:
    """The conditions under which the map holds."""
    weights = result.weights.source + (" weights (fallback)" if result.weights.fallback else " weights")
    pictures = f"{result.input.n_images} image{'' if result.input.n_images == 1 else 's'}"
    reference = "" if result.wrt == "image" else f" · wrt {result.wrt}"
    return f"{weights} · {size_text(result.input.size)} · {convention_text(result)} · {pictures}{reference}"


def _literal(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
