"""Local attribution maps and what is said of them: their means, and the differences between models."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erfscope.apps.lam.attribution import BlurPath
from erfscope.apps.lam.lam_map import LamMap
from erfscope.core import ErfscopeError, to_json
from erfscope.show import DASH, Cell, Column, Note, Shown, Table, Value, counted, plus, rounded, rows_of, write

#: The sizes of a map: their head, and their meaning.
SIZES = {
    "di": ("DI", "100 (1 - Gini), which falls with the input's size"),
    "r50_px": ("r50", "px around the window that hold half of the map"),
    "r90_px": ("r90", "px around the window that hold nine tenths"),
    "area_px": ("area", "exp(entropy), the px of a flat map as spread"),
}
TRF, COMPLETE = "box that the window can see at all, px", "sum of the map's signed values / the objective's change"
#: Images, or windows, from which on there is a standard error.
FEWEST = 4
#: A completeness so far from 1 asks for more steps.
INCOMPLETE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lam(Shown):
    """Local attribution maps of one model or several, on the same windows of the same images."""

    maps: tuple[LamMap, ...]
    path: BlurPath

    def __repr__(self) -> str:
        return f"<{self._headline()}>"

    @property
    def models(self) -> list[str]:
        """The labels, in the order in which they were given."""
        return list(dict.fromkeys(each.model for each in self.maps))

    def of(self, model: str) -> list[LamMap]:
        """The maps of one model."""
        return [each for each in self.maps if each.model == model]

    @property
    def error_over(self) -> str:
        """What standard errors are over: "images", "windows", or "" where there are too few of both."""
        maps = self.of(self.models[0])
        is_over = {"images": len({each.image for each in maps}) >= FEWEST, "windows": len(maps) >= FEWEST}
        return next((name for name, holds in is_over.items() if holds), "")

    def mean(self, model: str, size: str, minus: str | None = None) -> tuple[float, float]:
        """The mean of a size over images and windows, and its standard error s / sqrt(n) over :attr:`error_over`;
        not-a-number without one. Windows without attribution are left out.

        Args:
            model: Its label.
            size: A name of :data:`SIZES`.
            minus: Of the differences to this model on the same windows.
        """
        others = [each.sizes[size] for each in self.of(minus)] if minus else [0.0] * len(self.of(model))
        groups: dict[object, list[float]] = defaultdict(list)
        for each, other in zip(self.of(model), others, strict=True):
            if not math.isnan(difference := each.sizes[size] - other):
                groups[each.image if self.error_over == "images" else (each.image, each.window)].append(difference)
        means = [float(np.mean(group)) for group in groups.values()] or [math.nan]
        error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) >= FEWEST else math.nan
        return float(np.mean(means)), error

    def completeness(self, model: str) -> float:
        """The median over the windows of a model."""
        return float(
            np.median([each.completeness for each in self.of(model) if not math.isnan(each.completeness)] or [1.0])
        )

    def _headline(self) -> str:
        windows, images = counted(len(self.of(self.models[0])), "window"), len({each.image for each in self.maps})
        return f"Local attribution of {windows} in {counted(images, 'image')}: {', '.join(self.models)}"

    def table(self) -> Table:
        """A row for each model: the means of its sizes, the box of its receptive fields, and its completeness."""
        lines: list[list[Value]] = []
        for model in self.models:
            fields = {each.place.size_text for each in self.of(model)}
            trf = fields.pop() if len(fields) == 1 else "differs"
            sizes = [_cell(*self.mean(model, size)) for size in SIZES]
            lines.append([model, *sizes, trf, f"{self.completeness(model):.3f}"])
        own = (
            Column(name="TRF", title="TRF", symbol="TRF", gloss=TRF),
            Column(name="complete", gloss=COMPLETE, kind="number", rank=2),
        )
        path = self.path
        text = (
            f"{self._headline()}; sigma {path.sigma:g} to 0 in {path.steps} steps, gradient at the {path.gradient_at}"
        )
        columns = (Column(name="model", kind="name"), *_columns(), *own)
        over = f"; ± standard error over {self.error_over}" if self.error_over else ""
        return Table(columns=columns, rows=rows_of(lines), caption=f"{text} of each{over}.", terms=columns[1:-1])

    def differences(self) -> Table:
        """A row for each model but the first: its sizes minus the first one's, on the same windows."""
        first, *others = self.models
        lines: list[list[Value]] = [
            [name, *(_cell(*self.mean(name, size, first), signed=True) for size in SIZES)] for name in others
        ]
        return Table(columns=(Column(name=f"minus {first}", kind="name"), *_columns()), rows=rows_of(lines))

    def windows(self) -> Table:
        """A row for each model, image and window."""
        records = [each.record() | {"window": str(each.window)} for each in self.maps]
        lines: list[list[Any]] = [[None if each != each else each for each in record.values()] for record in records]
        return Table(columns=tuple(Column(name=name) for name in records[0]), rows=rows_of(lines))

    def parts(self) -> Iterator[Table | Note]:
        """What is printed."""
        yield Note(text=self._headline(), style="bold")
        yield from (Note(text=""), self.table(), Note(text=""))
        if len(self.models) > 1:
            yield from (self.differences(), Note(text=""))
        yield from (Note(text=text, style="yellow") for text in self.notes())
        if self.error_over:
            yield Note(text=f"± standard error over {self.error_over}", style="dim")
        for head, gloss in [*SIZES.values(), ("TRF", TRF), ("complete", COMPLETE)]:
            yield Note(text=f"{head}: {gloss}", style="dim")

    def notes(self) -> list[str]:
        """What a reader must know: of the images, of windows without attribution, and of too few steps."""
        found = [f"{each.image}: {each.note}" for each in self.maps if each.note]
        found += [
            f"{each.model}: random weights, so that the map is the architecture's"
            for each in self.maps
            if each.is_random
        ]
        for each in self.maps:
            if math.isnan(each.sizes["di"]):
                found.append(
                    f"{each.model}, window {each.window} of {each.image}: without edges, nothing is attributed"
                )
        for model in self.models:
            if abs((complete := self.completeness(model)) - 1) > INCOMPLETE:
                text = f"{model}: attributions sum to {complete:.3f} of the objective's change"
                found.append(f"{text}; take more steps (--steps), or the middle of each (--gradient-at middle)")
        return list(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """Means with their errors, and the numbers of every window, as JSON values; None where there is none."""
        document: dict[str, Any] = {
            "schema": "erfscope-lam-1",
            "path": asdict(self.path),
            "error_over": self.error_over,
        }
        document["means"] = {model: {size: self.mean(model, size) for size in SIZES} for model in self.models}
        found: dict[str, Any] = to_json(document | {"maps": [each.record() for each in self.maps]})
        return found

    def figure(self, number: int = 0) -> Any:
        """Draw the maps of all models of one window, counted over all images, as a matplotlib figure.

        Raises:
            ErfscopeError: there is no such window, or no room.
        """
        from erfscope.apps.lam.figure import lam_figure

        count = len(self.of(self.models[0]))
        if not 0 <= number < count:
            raise ErfscopeError(f"there is no window {number}; there are {count}, counted from 0")
        return lam_figure(self.maps[number::count])

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a file: .json, .csv (every window), .md or .tex (a row for each model), or a figure of the first window
        as .png, .svg or .pdf.

        Raises:
            ErfscopeError: another suffix, or it exists and ``force`` is not set.
        """
        contents: dict[str, Any] = {".json": self.to_json, ".csv": self.windows, ".md": self.table, ".tex": self.table}
        write(path, contents.get(Path(path).suffix.lower(), self.figure)(), force=force)


def _columns() -> list[Column]:
    return [Column(name=head, title=head, symbol=head, gloss=gloss, kind="number") for head, gloss in SIZES.values()]


def _cell(value: float, error: float, *, signed: bool = False) -> Cell:
    """A number with its error, as tables have it."""
    if math.isnan(value):
        return Cell(text=DASH, is_missing=True)
    text, se = rounded(value, error)
    error_cell = Cell(text=se, value=error) if se else None
    return Cell(text=f"{plus(text)}{text}" if signed else text, value=value, error=error_cell)
