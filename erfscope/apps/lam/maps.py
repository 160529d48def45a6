"""Local attribution maps and what is said of them: their means, and the differences between models."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from erfscope.apps.lam.attribution import BlurPath
from erfscope.apps.lam.records import LamMap, LamRecord
from erfscope.apps.lam.sizes import SIZES
from erfscope.core import ErfscopeError, MeasureValue, from_json, to_json
from erfscope.show import (
    DASH,
    Cell,
    Column,
    Note,
    Shown,
    Table,
    Value,
    counted,
    number,
    page,
    plot,
    plus,
    rounded,
    rows_of,
    write,
)

#: What the last columns of a table mean.
TRF, COMPLETE = "box that the window can see at all, px", "sum of the map's signed values / the objective's change"
#: Images, or windows, from which on there is an error.
FEWEST = 4
#: A completeness so far from 1 asks for more steps.
INCOMPLETE = 0.05
#: The sizes that a tolerance is of, and so many errors on each side hold nine of ten differences.
GUARDED, REACH = ("di", "r90_px"), 1.64
#: Windows that a page draws at most.
MOST_DRAWN = 12
#: What verdicts on differences are, by the exit code.
WORDS = {0: "pass", 1: "fail", 3: "inconclusive"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lam(Shown):
    """Local attribution maps of one model or several, on the same windows of the same images."""

    maps: Sequence[LamRecord]
    path: BlurPath
    #: By which share the sizes of a model may differ from those of the first one; None where that is not asked.
    tolerance: float | None = None
    schema: Literal["erfscope.lam/1"] = "erfscope.lam/1"

    def __repr__(self) -> str:
        return f"<{self._headline()}>"

    @property
    def models(self) -> list[str]:
        """The labels, in the order in which they were given."""
        return list(dict.fromkeys(each.model for each in self.maps))

    def of(self, model: str) -> list[LamRecord]:
        """The maps of one model."""
        return [each for each in self.maps if each.model == model]

    @property
    def error_over(self) -> str:
        """What standard errors are over: "images", "windows", or "" where there are too few of both."""
        maps = self.of(self.models[0])
        is_over = {"images": len({each.image for each in maps}) >= FEWEST, "windows": len(maps) >= FEWEST}
        return next((name for name, holds in is_over.items() if holds), "")

    def mean(self, model: str, size: str, minus: str | None = None) -> tuple[float | None, float | None]:
        """The mean of a size over images and windows, and its standard error over :attr:`error_over`, widened for few
        as all errors behind ± are; None each where there is none. Windows without attribution are left out.

        Args:
            model: Its label.
            size: A name of :data:`erfscope.apps.lam.sizes.SIZES`.
            minus: Of the differences to this model on the same windows.
        """
        ours, theirs = ([getattr(each, size) for each in self.of(name)] for name in (model, minus or model))
        groups: dict[object, list[float]] = defaultdict(list)
        for each, value, other in zip(self.of(model), ours, theirs, strict=True):
            if value is not None and other is not None:
                key = each.image if self.error_over == "images" else (each.image, each.window)
                groups[key].append(value - other if minus else value)
        means = list(map(fmean, groups.values()))
        if not means:
            return None, None
        without = tuple(fmean([*means[:n], *means[n + 1 :]]) for n in range(len(means))) if len(means) > 1 else ()
        found = MeasureValue(value=fmean(means), leave_one_out=without, kind="radius")
        error = found.jackknife_se()
        return fmean(means), None if error is None else error * found.widening

    def completeness(self, model: str) -> float | None:
        """The median over the windows of a model; None where nothing is attributed."""
        found = [each.completeness for each in self.of(model) if each.completeness is not None]
        return median(found) if found else None

    def verdicts(self) -> list[tuple[int, str]]:
        """Whether the guarded sizes of models differ, as (exit code, line) each; none without a tolerance T. A model is
        compared with the first of its name, stored or measured; where no name is there twice, all with the first model.

        With the difference D and R = :data:`REACH` times its error, both of the same windows: it fails where abs(D) > T
        and abs(D) > R, passes where abs(D) <= T and abs(D) + R <= 2 T, and is inconclusive else.
        """
        first_of: dict[str, str] = {}
        for model in self.models:
            first_of.setdefault(_name(model), model)
        pairs = [(model, first_of[_name(model)]) for model in self.models if first_of[_name(model)] != model]
        pairs = pairs or [(model, self.models[0]) for model in self.models[1:]]
        found = []
        for model, first in pairs if self.tolerance is not None else ():
            for size in GUARDED:
                (value, error), (expected, _) = self.mean(model, size, first), self.mean(first, size)
                limit, code = (self.tolerance or 0.0) * abs(expected or 0.0), 3
                if value is not None and error is not None:
                    reach, away = REACH * error, abs(value)
                    code = 1 if away > max(limit, reach) else 0 if away <= limit and away + reach <= 2 * limit else 3
                text = f"{SIZES[size][0]} {_cell(value, error).signed} from {first}"
                few = "" if error is not None else f"; an error takes {FEWEST} images or windows"
                found.append((code, f"{WORDS[code]}: {model}: {text}, tolerated {number(limit)}{few}"))
        return found

    @property
    def exit_code(self) -> int:
        """1 where a size fails its tolerance, else 3 where one is inconclusive, else 0."""
        codes = {code for code, _ in self.verdicts()}
        return 1 if 1 in codes else max(codes, default=0)

    def _headline(self) -> str:
        windows, images = counted(len(self.of(self.models[0])), "window"), len({each.image for each in self.maps})
        return f"Local attribution of {windows} in {counted(images, 'image')}: {', '.join(self.models)}"

    def _asked(self) -> str:
        path, over = self.path, f"; ± standard error over {self.error_over}" if self.error_over else ""
        return f"sigma {path.sigma:g} to 0 in {path.steps} steps, gradient at the {path.gradient_at} of each{over}"

    def table(self) -> Table:
        """A row for each model: the means of its sizes, the box of its receptive fields, and its completeness."""
        lines: list[list[Value]] = []
        for model in self.models:
            fields = {each.trf for each in self.of(model)}
            trf = fields.pop() if len(fields) == 1 else "differs"
            sizes = [_cell(*self.mean(model, size)) for size in SIZES]
            complete = self.completeness(model)
            lines.append([model, *sizes, trf, DASH if complete is None else f"{complete:.3f}"])
        own = (
            Column(name="TRF", title="TRF", symbol="TRF", gloss=TRF),
            Column(name="complete", gloss=COMPLETE, kind="number", rank=2),
        )
        columns, caption = (
            (Column(name="model", kind="name"), *_columns(), *own),
            f"{self._headline()}; {self._asked()}.",
        )
        return Table(columns=columns, rows=rows_of(lines), caption=caption, terms=columns[1:-1])

    def differences(self) -> Table:
        """A row for each model but the first: its sizes minus the first one's, on the same windows."""
        first, *others = self.models
        lines: list[list[Value]] = [
            [name, *(_cell(*self.mean(name, size, first), signed=True) for size in SIZES)] for name in others
        ]
        return Table(columns=(Column(name=f"minus {first}", kind="name"), *_columns()), rows=rows_of(lines))

    def windows(self) -> Table:
        """A row for each model, image and window."""
        records = [_record(each) | {"window": each.window_text} for each in self.maps]
        return Table(
            columns=tuple(Column(name=name) for name in records[0]), rows=rows_of([*each.values()] for each in records)
        )

    def parts(self) -> Iterator[Table | Note]:
        """What is printed."""
        yield Note(text=self._headline(), style="bold")
        yield from (Note(text=""), self.table(), Note(text=""))
        if len(self.models) > 1:
            yield from (self.differences(), Note(text=""))
        yield from (Note(text=text, style="bold red" if code == 1 else "") for code, text in self.verdicts())
        yield from (Note(text=text, style="yellow") for text in self.notes())
        yield from (Note(text=text, style="dim") for text in self._glosses())

    def _glosses(self) -> list[str]:
        over = [f"± standard error over {self.error_over}"] if self.error_over else []
        return over + [f"{head}: {gloss}" for head, gloss in [*SIZES.values(), ("TRF", TRF), ("complete", COMPLETE)]]

    def notes(self) -> list[str]:
        """What a reader must know: of the images, of windows without attribution, and of too few steps."""
        found = [f"{each.image}: {each.note}" for each in self.maps if each.note]
        random = "random weights, so that the map is the architecture's"
        found += [f"{each.model}: {random}" for each in self.maps if each.is_random]
        for each in self.maps:
            if each.di is None:
                window = f"window {each.window_text} of {each.image}"
                found.append(f"{each.model}, {window}: without edges, nothing is attributed")
        for model in self.models:
            complete = self.completeness(model)
            if complete is not None and abs(complete - 1) > INCOMPLETE:
                text = f"{model}: attributions sum to {complete:.3f} of the objective's change"
                found.append(f"{text}; take more steps (--steps), or the middle of each (--gradient-at middle)")
        return list(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """Means with their errors, and the numbers of every window, as JSON values; None where there is none."""
        document: dict[str, Any] = {"schema": self.schema, "path": self.path, "error_over": self.error_over}
        means = {model: {size: self.mean(model, size) for size in SIZES} for model in self.models}
        verdicts = [{"verdict": WORDS[code], "text": text} for code, text in self.verdicts()]
        document |= {"means": means, "verdicts": verdicts, "maps": list(map(_record, self.maps))}
        found: dict[str, Any] = to_json(document)
        return found

    def figure(self, number: int = 0) -> Any:
        """Draw the maps of all models of one window, counted over all images, as a matplotlib figure.

        Raises:
            ErfscopeError: there is no such window, no room, or only stored numbers.
        """
        from erfscope.apps.lam.figure import lam_figure

        count = len(self.of(self.models[0]))
        if not 0 <= number < count:
            raise ErfscopeError(f"there is no window {number}; there are {count}, counted from 0")
        return lam_figure([each for each in self.maps[number::count] if isinstance(each, LamMap)])

    def to_html(self) -> str:
        """The page: one file with the tables, what was asked, and the figures of the first windows, or why there are
        none."""
        first, undrawn = self.of(self.models[0])[:MOST_DRAWN], ""
        try:
            drawn = [plot.figure_bytes(self.figure(n), ".png") for n in range(len(first))]
        except ErfscopeError as error:
            drawn, undrawn = [], f"Without figures: {error}"
        if drawn and len(self.of(self.models[0])) > len(drawn):
            undrawn = f"{len(drawn)} of {len(self.of(self.models[0]))} windows are drawn; -o FILE.csv has all"
        template = (files("erfscope.apps.lam") / "lam.html.j2").read_text(encoding="utf-8")
        text: str = page.template_of(template).render(
            lam=self,
            headline=self._headline(),
            asked=self._asked(),
            glosses=self._glosses(),
            tables=[self.table(), *([self.differences()] if len(self.models) > 1 else [])],
            figures=[(each, base64.b64encode(image).decode()) for each, image in zip(first, drawn, strict=False)],
            undrawn=undrawn,
            **page.assets(""),
        )
        return text

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a file: .json, .csv (every window), .md or .tex (a row for each model), a page as .html, or a figure of
        the first window as .png, .svg or .pdf.

        Raises:
            ErfscopeError: another suffix, or it exists and ``force`` is not set.
        """
        contents: dict[str, Any] = {".json": self.to_json, ".csv": self.windows, ".md": self.table, ".tex": self.table}
        contents[".html"] = self.to_html
        write(path, contents.get(Path(path).suffix.lower(), self.figure)(), force=force)


def read(path: str | Path) -> Lam:
    """Maps that were stored as .json: their numbers, each model's label with the file's name behind it.

    Raises:
        ErfscopeError: it cannot be read, or holds no such maps.
    """
    try:
        found: Lam = from_json(Path(path).read_bytes(), Lam)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ErfscopeError(f"cannot read {str(path)!r} as stored local attribution maps: {error}") from error
    return replace(found, maps=[replace(each, model=f"{each.model} ({path})") for each in found.maps])


def _name(model: str) -> str:
    """A label without the file that its maps were stored in."""
    return model.rpartition(" (")[0] if model.endswith(".json)") else model


def joined(several: Sequence[Lam], tolerance: float | None) -> Lam:
    """Maps of the same windows as one answer, model after model.

    Raises:
        ErfscopeError: they are of other images, windows or paths, of a model that stands twice, or there are none.
    """
    whole = replace(several[0], maps=[each for lam in several for each in lam.maps], tolerance=tolerance)
    first, *others = [[(each.image, each.window) for each in whole.of(model)] for model in whole.models] or [[]]
    if not first or len(set(first)) < len(first):
        raise ErfscopeError("stored maps name no model, or one model twice; name each file once")
    for model, windows in zip(whole.models[1:], others, strict=True):
        if windows != first:
            raise ErfscopeError(f"{model} has other images or windows than {whole.models[0]}; give both the same")
    if tolerance is not None and len(whole.models) < 2:
        raise ErfscopeError("a tolerance is of models beside the first one; name a .json of stored maps first")
    if any(each.path != whole.path for each in several):
        raise ErfscopeError("stored maps were found along other paths; give the same steps, sigma and conventions")
    return whole


def _record(each: LamRecord) -> dict[str, Any]:
    """The numbers of a map by name."""
    return {name: getattr(each, name) for name in LamRecord.__dataclass_fields__}


def _columns() -> list[Column]:
    return [Column(name=head, title=head, symbol=head, gloss=gloss, kind="number") for head, gloss in SIZES.values()]


def _cell(value: float | None, error: float | None, *, signed: bool = False) -> Cell:
    """A number with its error, as tables have it."""
    if value is None:
        return Cell(text=DASH, is_missing=True)
    text, se = rounded(value, error)
    error_cell = Cell(text=se, value=error) if se else None
    return Cell(text=f"{plus(text)}{text}" if signed else text, value=value, error=error_cell)
