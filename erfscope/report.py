"""A report: results with the settings and the environment they were measured in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erfscope.comparison import paired
from erfscope.environment import environment
from erfscope.errors import ErfscopeError, unknown
from erfscope.links import refuse_loop
from erfscope.measures import MEASURES
from erfscope.pairing import partners
from erfscope.result import Result
from erfscope.serialise import SCHEMA, plain, result_to_json
from erfscope.statistics import paired_difference
from erfscope.storage import (
    FIGURES,
    TABLES,
    check_directory,
    check_target,
    map_bytes,
    read_document,
    report_bytes,
    save_directory,
    write_bytes,
)
from erfscope.tables import COMPARED, Differences, text_table

SUFFIXES = (".html", ".json", *TABLES, *FIGURES, ".npz")
#: The page in the folder of a report.
PAGE = "index.html"


def check_output(path: str | Path, *, force: bool) -> None:
    """Refuse an output that :meth:`Report.save` could not write; called before anything is measured.

    Raises:
        ErfscopeError: the target exists, its folder does not, or its suffix is unknown.
    """
    target = Path(path)
    refuse_loop(target)
    suffix = target.suffix.lower()
    if suffix in SUFFIXES:
        check_target(target, force=force)
    elif suffix and not str(path).endswith(("/", os.sep)) and not target.is_dir():
        known = ", ".join(SUFFIXES)
        raise ErfscopeError(f"cannot write {target.name!r}; an output is a folder (end its name with /), or a file ending in {known}")
    else:
        check_directory(target, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
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
            raise ErfscopeError(f"{len(found)} results are called {key!r}; ask by id: {', '.join(result.id for result in found[:6])}")
        return found[0]

    @property
    def ok(self) -> bool:
        """Whether every result can be used."""
        return all(result.ok for result in self.results)

    def differences(self, names: Sequence[str] = COMPARED) -> list[Differences]:
        """For every result, measures minus those of the one it is :meth:`compared_with`, with the error of the paired difference.

        Paired by groups of images: what an image does to both models cancels, so that the error is smaller than the two errors suggest.
        Nothing for results that have no such partner, and for those that share too little with it (:func:`erfscope.comparison.paired`).
        """
        rows: list[Differences] = [{} for _ in self.results]
        for row, (result, other) in enumerate(zip(self.results, partners(self.results), strict=True)):
            if other is not None and paired(other, result):
                shared = [name for name in names if name in other.measures and name in result.measures]
                numbers = [n for n in shared if isinstance(other[n].value, float) and isinstance(result[n].value, float)]
                rows[row] = {name: paired_difference(result[name], other[name]) for name in numbers}
        return rows

    def compared_with(self, result: Result) -> Result | None:
        """The result that another is compared with, :func:`erfscope.pairing.partners`; None for what the others are compared with."""
        return next((other for each, other in zip(self.results, partners(self.results), strict=True) if each is result), None)

    def table(self, measures: Sequence[str] | None = None, *, format: str = "markdown") -> str:
        """The results as text: ``"csv"``, ``"markdown"``, ``"latex"`` (booktabs) or ``"plain"``; all measures for CSV if none are named.

        CSV of several results has columns of :meth:`differences`, with the standard error of the paired difference, for the measures named,
        else for those that a comparison shows. Markdown and LaTeX are for papers: what all rows share stands in the caption, a result that
        cannot be used has dashes and a note.
        """
        names = list(measures) if measures is not None else (list(MEASURES) if format == "csv" else list(COMPARED))
        compared = list(COMPARED) if measures is None else names
        differences = self.differences(compared) if len(self) > 1 else []
        return text_table(self.results, names, format=format, differences=differences, compared=compared)

    def figure(self, path: str | Path | None = None, *, kind: str = "panel", scale: str = "linear", colours: str = "shared") -> Any:
        """The results as a matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Args:
            path: A file of that name is replaced.
            kind: ``"panel"``, all maps side by side on one scale; ``"overlay"``, the same over the pictures; ``"profile"``, density and
                enclosed mass by distance; ``"depth"``, ``"alpha"`` or ``"sizes"``, radii against layers, the share of inserted blocks or
                input sizes; ``"units"``, units of one layer at their places.
            scale: ``"linear"``, ``"log"`` or ``"power"``, for display only and said on the figure.
            colours: ``"shared"``, one range for all maps, or ``"own"``, a range for each map; curves have none.

        Raises:
            ErfscopeError: an unknown kind or scale, or a kind that these results do not fit; the text says what it needs and which do.
        """
        from erfscope.figures import figure_of

        return figure_of(self.results, kind, scale=scale, colours=colours, path=path)

    def to_json(self, map_files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The report as JSON values, as ``schema/report-2.json`` describes them."""
        files = map_files or {}
        others = partners(self.results)
        differences = [{"to": other.id, **row} if row and other else None for row, other in zip(self.differences(), others, strict=True)]
        rows = zip(self.results, differences, strict=True)
        return {
            "schema": SCHEMA,
            "environment": plain(self.environment),
            "settings": plain(self.settings),
            "results": [result_to_json(result, map_file=files.get(result.id), differences=row) for result, row in rows],
        }

    def save(
        self,
        path: str | Path,
        *,
        force: bool = False,
        figure: str | None = None,
        scale: str = "linear",
        colours: str = "shared",
        drawn: bool = True,
    ) -> None:
        """Write the report: a folder (page, JSON, maps, a panel per result and the figures that fit), or one file whose suffix decides.

        Args:
            path: Where to.
            force: Whether to replace what is there.
            figure: Kind of the figure in a .png, .svg or .pdf file, ``"panel"`` if None; a folder then has it whatever else fits.
            scale: Of figures, and of the page when it is opened, as for :meth:`figure`.
            colours: Of figures, as for :meth:`figure`.
            drawn: Whether a folder gets its page and figures, which take most of the time.

        Raises:
            ErfscopeError: the target exists and ``force`` is not set, its suffix is unknown, it cannot be written, or the results do not
                fit the kind of figure.
        """
        check_output(path, force=force)
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix in FIGURES:
            from erfscope.figures import figure_bytes

            shown = self.figure(kind=figure or "panel", scale=scale, colours=colours)
            write_bytes(target, figure_bytes(shown, suffix), force=force)
        elif suffix in TABLES:
            write_bytes(target, self.table(format=TABLES[suffix]).encode(), force=force)
        elif suffix == ".html":
            from erfscope.page import html

            write_bytes(target, html(self, scale=scale).encode(), force=force)
        elif suffix == ".json":
            write_bytes(target, report_bytes(self.to_json()), force=force)
        elif suffix == ".npz":
            write_bytes(target, map_bytes(list(self.results)), force=force)
        elif not drawn:
            save_directory(self.to_json, list(self.results), target, others=[], force=force)
        else:
            from erfscope.figures import folder_figures
            from erfscope.page import html

            others = [(PAGE, html(self, scale=scale).encode())]
            # A figure that does not fit is no reason to lose everything else.
            misfit = None
            try:
                others += folder_figures(self.results, kind=figure, scale=scale, colours=colours)
            except ErfscopeError as error:
                misfit = error
                others += folder_figures(self.results, scale=scale, colours=colours)
            save_directory(self.to_json, list(self.results), target, others=others, force=force)
            if misfit is not None:
                raise misfit

    def __rich__(self) -> Any:
        from erfscope.cli.terminal import report_view

        return report_view(self)

    def _repr_html_(self) -> str:
        from erfscope.page import report_fragment

        return report_fragment(self)

    def _repr_markdown_(self) -> str:
        return self.table()


def read(path: str | Path) -> Report:
    """A report stored by :meth:`Report.save`: a folder, or its .json file.

    Raises:
        ErfscopeError: no such file, or not a report.
    """
    document, results = read_document(Path(path))
    return Report(results=tuple(results), settings=document["settings"], environment=document["environment"])
