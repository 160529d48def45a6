"""A report: results with the settings and the environment they were measured in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Unpack

from erfscope.core.answer.comparability import Differences, paired, partners
from erfscope.core.answer.figure_style import FigureKind, Style, TableFormat
from erfscope.core.answer.measures import INPUT_SHARE, MEASURES, SHOWN
from erfscope.core.answer.outputs import Displayed, outputs
from erfscope.core.answer.result import Result
from erfscope.core.system.environment import environment
from erfscope.core.values.errors import ErfscopeError, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Displayed):
    """Results in the order they were asked for."""

    results: tuple[Result, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=environment)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, key: int | str) -> Result:
        """A result by position, label or id.

        Raises:
            ErfscopeError: no such label, or several results of it.
        """
        if isinstance(key, int):
            return self.results[key]
        found = [result for result in self.results if key in (result.label, result.id)]
        if not found:
            raise unknown("result", key, [result.label for result in self.results])
        if len(found) > 1:
            raise ErfscopeError(
                f"{len(found)} results are called {key!r}; ask by id: {', '.join(result.id for result in found[:6])}"
            )
        return found[0]

    @property
    def ok(self) -> bool:
        """Whether every result can be used."""
        return all(result.ok for result in self.results)

    def differences(self, names: Sequence[str] | None = None) -> list[Differences]:
        """For every result, measures minus those of the one it is :meth:`compared_with`, with the error of the paired
        difference.

        Measures that are named are computed where they were not; else those that tables show count, as far as they
        were. Paired by groups of images: what an image does to both models cancels, so that the error is smaller than
        the two errors suggest. Nothing for results that have no such partner, and for those that share too little with
        it (:func:`erfscope.core.answer.comparability.paired`)."""
        rows: list[Differences] = [{} for _ in self.results]
        for row, (result, other) in enumerate(zip(self.results, partners(self.results), strict=True)):
            if other is not None and paired(other, result):
                for each in (other, result):
                    each.compute(names or ())
                shared = [name for name in names or SHOWN if name in other.measures and name in result.measures]
                numbers = [
                    n for n in shared if isinstance(other[n].value, float) and isinstance(result[n].value, float)
                ]
                rows[row] = {name: result[name].minus(other[name]) for name in numbers}
        return rows

    def compared_with(self, result: Result) -> Result | None:
        """The result that another is compared with (:func:`erfscope.core.answer.comparability.partners`).

        None for what others are compared with."""
        return next(
            (other for each, other in zip(self.results, partners(self.results), strict=True) if each is result), None
        )

    def table(self, measures: str | Sequence[str] | None = None, *, format: TableFormat = "markdown") -> str:
        """The results as text: ``"csv"``, ``"markdown"``, ``"latex"`` (booktabs) or ``"plain"``.

        If no measures are named, CSV has all that were measured, and the others those of a comparison, or all where
        few were measured.

        CSV of several results has columns of :meth:`differences`, with the standard error of the paired difference, for
        the measures named, else for those that a comparison shows. Markdown and LaTeX are for papers: what all rows
        share stands in the caption, a result that cannot be used has dashes and a note. LaTeX has at most four columns,
        for one of two columns of a page, if no measures are named: r50 and r90, and one column for all conditions in
        which rows differ; else all that are named, over both."""
        measures = [measures] if isinstance(measures, str) else measures
        for result in self.results:
            result.compute(measures or ())
        measured = [
            name for name in (INPUT_SHARE, *MEASURES) if any(name in result.measures for result in self.results)
        ]
        names = list(measures) if measures else measured if format == "csv" else None
        compared = [name for name in measures or SHOWN if names is None or name in names]
        return str(outputs().table(self, names, compared=compared, format=format))

    def to_dataframe(self, measures: str | Sequence[str] | None = None) -> Any:
        """The results as a pandas data frame: rows and columns of the CSV of :meth:`table`, numbers in full and NaN
        where there is none.

        Args:
            measures: Those that have columns; all that were measured if None.

        Raises:
            ErfscopeError: pandas is not installed, or an unknown measure.
        """
        return outputs().frame(self, [measures] if isinstance(measures, str) else measures)

    def figure(
        self,
        path: str | Path | None = None,
        *,
        kind: FigureKind | None = None,
        **style: Unpack[Style],
    ) -> Any:
        """The results as a matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Args:
            path: A file of that name is replaced.
            kind: A name in ``erfscope.show.figures.kinds.FIGURES``, where stands what each shows and needs. If None,
                ``"positions"``, the sizes of every unit, where those were measured, else ``"panel"``, all maps side by
                side on one scale.
            **style: ``scale``: ``"share"``, the share of the ERF in pixels at least as strong, or ``"linear"``,
                ``"log"`` or ``"power"`` density; for display only and named on the figure. ``colours``: ``"shared"``,
                one range for all maps, or ``"own"``, a range for each map; curves have none. ``cmap``: the name of a
                colour map of matplotlib. ``contours``: per cents of the ERF whose highest-density regions are outlined
                on maps, such as (50, 90). ``zoom``: ``"auto"``, a window as wide as the largest ERF needs, one for all
                maps; ``"none"``, the whole input; or the window's side in the unit of the axes, px of images without a
                spacing. ``columns``: maps side by side, as far as they fit. ``width``: ``"column"`` (83 mm, CVPR's),
                ``"text"`` (139.7 mm, NeurIPS'), ``"page"`` (174 mm, both columns of CVPR's), or millimetres such as
                ``"89mm"``; as wide as the kind of figure needs if None. ``font``: the name of a font that matplotlib
                knows. ``conditions``: whether conditions and the meaning of colours stand under the panels; a folder's
                captions have them anyway.

        Raises:
            ErfscopeError: an unknown kind or style, or a kind that these results do not fit; the text says what
                it needs.
        """
        return outputs().figure(self.results, kind, path=path, **style)

    def to_json(self, maps: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The report as JSON values, as ``schema/report-1.json`` describes them; ``maps``: see :meth:`save`."""
        return dict(outputs().document(self, maps))

    def save(
        self,
        path: str | Path,
        *,
        force: bool = False,
        figure: str | None = None,
        drawn: bool = True,
        **style: Unpack[Style],
    ) -> None:
        """Write the report: a folder (page, JSON, maps, a panel per result and the figures that fit), or one file whose
        suffix decides.

        Args:
            path: Where to.
            force: Whether to replace what is there.
            figure: Kind of the figure in a .png, .svg or .pdf file, as for :meth:`figure`; a folder has it whatever
                else fits.
            drawn: Whether a folder gets its page and figures, which take most of the time.
            **style: As for :meth:`figure`; the page opens with the scale, and has the colour map.

        Raises:
            ErfscopeError: the target exists and ``force`` is not set, its suffix is unknown, it cannot be written, or
                the results do not fit the kind of figure.
        """
        outputs().save(self, path, force=force, figure=figure, drawn=drawn, **style)

    def __repr__(self) -> str:
        return str(outputs().line(self))

    def _repr_markdown_(self) -> str:
        return self.table()


def unique_ids(results: list[Result]) -> tuple[Result, ...]:
    """Results whose ids differ, since ids name files."""
    taken: set[str] = set()
    found = []
    #: Of the results that were called so, the last one's name now: a host comes right before its variants.
    now: dict[str, str] = {}
    for result in results:
        names = chain([result.id], (f"{result.id}-{number}" for number in count(2)))
        # Some file systems do not tell capitals apart.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        now[result.id] = name
        found.append(replace(result, id=name, host=now.get(result.host or "", result.host)))
    return tuple(found)
