"""What studies are made of: entries, options, rows of a table, claims, and how they are measured and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

import erfscope
from erfscope.figures.chart_data import Curve, Picture
from erfscope.maps.erf_map import FloatArray

Progress = Callable[[str, int, int], None]
#: How much a study computes: trainings of hours, all in at most ten minutes, enough to show the claim in less than one,
#: or just enough for a test.
Effort = Literal["long", "full", "quick", "smoke"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One entry of the table of studies."""

    name: str
    #: The papers.
    source: str
    #: Its claim, in a few words.
    shows: str
    #: Its duration on two CPU cores in seconds, in full and quick.
    seconds: int
    quick_seconds: int
    #: The module of this room that has ``study(asked)``.
    home: str
    #: The papers' own data sets that it takes instead of what is made here; "" for none.
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of a run."""

    seed: int = 0
    effort: Effort = "full"
    progress: Progress | None = None
    #: A folder with the papers' own data set, for the studies that can take one; None for data made or shipped here.
    data: Path | None = None
    #: A folder where trained nets are kept from one run to the next; None to keep none.
    cache: Path | None = None
    #: Seconds that earlier runs spent on the nets that this one takes from the cache.
    spent: list[float] = field(default_factory=list)

    def pick(self, *, full: T, quick: T, smoke: T, long: T | None = None) -> T:
        """Return the value for the effort; what has none for long is as in full."""
        return {"long": full if long is None else long, "full": full, "quick": quick, "smoke": smoke}[self.effort]

    def tell(self, text: str, done: int, total: int) -> None:
        """Report the progress of a study."""
        if self.progress is not None:
            self.progress(text, done, total)

    def each(self, text: str, cases: Collection[T]) -> Iterator[T]:
        """Yield the cases, and report the progress before each and after the last."""
        for done, case in enumerate(cases):
            self.tell(text, done, len(cases))
            yield case
        self.tell(text, len(cases), len(cases))


class Row(SimpleNamespace):
    """One line of a study's table: its numbers, by name."""

    name: str
    #: Whether the checks of the row hold.
    passed: bool
    #: Arrays of the row for the figure, (H, W) each; they are in no table.
    maps: dict[str, FloatArray]

    @property
    def numbers(self) -> dict[str, Any]:
        """All but the maps."""
        return {key: value for key, value in vars(self).items() if key != "maps"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a study's table."""

    title: str
    #: The cell of a row: a template such as ``"{r90:.1f}"`` of its numbers, or a function of the row.
    shown: str | Callable[[Any], str]
    _: KW_ONLY
    numeric: bool = True
    #: Whether its text may fold in a narrow terminal.
    folds: bool = False
    #: Whether a narrow terminal leaves it out.
    optional: bool = False
    #: The cell where a number of the template is None.
    none: str = ""

    def text(self, row: Row) -> str:
        """Return the cell of a row."""
        if callable(self.shown):
            return self.shown(row)
        is_lacking = any(value is None and f"{{{name}" in self.shown for name, value in row.numbers.items())
        return self.none if is_lacking else self.shown.format_map(row.numbers)


#: The last column of studies whose rows are checks.
VERDICT = Column("ok", lambda row: "ok" if row.passed else "FAILED", numeric=False)
Verdict = Literal["reproduced", "mechanism only", "not reproduced"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the literature, and what the study found."""

    claim: str
    #: The published result, or the closed form.
    published: str
    #: The result of the study, with its standard error where it has one.
    ours: str
    verdict: Verdict


def claim(text: str, published: str, ours: str, is_reproduced: bool, *, has_mechanism: bool = False) -> Claim:
    """Return a claim with its verdict: the published result, its mechanism alone (at another size), or neither."""
    verdict: Verdict = "mechanism only" if has_mechanism else "not reproduced"
    return Claim(text, published, ours, "reproduced" if is_reproduced else verdict)


def holds(rows: Sequence[Row]) -> bool:
    """Return whether the checks of all rows hold."""
    return all(row.passed for row in rows)


@dataclass(frozen=True, kw_only=True)
class StudyFindings:
    """The rows, claims and figure of a study."""

    columns: tuple[Column, ...] = field(repr=False)
    #: The number of a row with the heading that it is under; rows of one heading follow each other. None for no
    #: headings.
    section: str | None = None
    rows: Sequence[Row] = field(repr=False)
    claims: Sequence[Claim]
    picture: Picture = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every check held; a claim that a smaller training does not reproduce is no failure."""
        return holds(self.rows)

    @property
    def conclusion(self) -> str:
        """How many claims are reproduced, and which rows failed."""
        found = [each.verdict for each in self.claims]
        parts = [f"{found.count('reproduced')} of {len(found)} claims reproduced"]
        parts += [f"{found.count(each)} {each}" for each in get_args(Verdict)[1:] if each in found]
        failed = [row.name + (f" ({row.problem})" if getattr(row, "problem", None) else "") for row in self.rows]
        failed = [text for text, row in zip(failed, self.rows, strict=True) if not row.passed]
        return ", ".join(parts) + "." + (f" Failed: {', '.join(failed)}." if failed else "")


def measure(model: Any, **options: Any) -> Any:
    """Return the :class:`erfscope.Result` of a model that must have a map.

    Args:
        model: As :func:`erfscope.analyze` takes it.
        **options: Likewise.

    Raises:
        MeasurementError: it has none.
    """
    result = erfscope.analyze(model, **options)
    if result.map is None:
        raise result.failure("has no map")
    return result


def with_error(value: float, se: float | None, digits: int = 3) -> str:
    """Return a value, and its standard error unless that rounds to zero."""
    return f"{value:.{digits}f}" + (f" ± {se:.{digits}f}" if se is not None and se >= 0.5 * 10**-digits else "")


def percent(share: float, se: float) -> str:
    """Return a share in percent, and its standard error."""
    return f"{100 * share:.1f} ± {100 * se:.1f} %"


def share_with_error(share: float, count: int) -> str:
    """Return a share of ``count`` cases in percent, and its binomial standard error."""
    return percent(share, (share * (1 - share) / count) ** 0.5)


def error_of_mean(values: FloatArray) -> float:
    """Return the standard error of the mean of what several nets do in the same cases.

    Args:
        values: (nets, cases).

    Returns:
        That over nets or that over cases, whichever is larger.
    """
    return float(max(values.mean(1 - axis).std(ddof=1) / n**0.5 for axis, n in enumerate(values.shape) if n > 1))


def points(label: str, rows: Sequence[Row], number: str, *, x: str = "", scale: float = 1.0, error: str = "") -> Curve:
    """Return one point for each row that has a number.

    Args:
        label: Name of the curve.
        rows: Rows.
        number: Name of the number.
        x: Name of the number along the axis; "" for the row's place.
        scale: Factor of the number.
        error: Name of its standard error; "" for none.
    """
    known = [(place, row) for place, row in enumerate(rows) if getattr(row, number) is not None]
    return Curve(
        label=label,
        x=[getattr(row, x) if x else place for place, row in known],
        y=[scale * getattr(row, number) for _, row in known],
        error=[scale * (getattr(row, error) or 0.0) for _, row in known] if error else None,
        points=True,
    )
