"""The files that a report can be written to, a row for each suffix. Imports nothing: ``--help`` must be quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Content = Literal["page", "report", "table", "figure", "maps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """One kind of file."""

    suffix: str
    content: Content
    #: What such a file holds, for the documentation.
    holds: str
    #: Of a table its name for ``--format`` and ``Report.table``; "" of everything else.
    table: str = ""


_TABLE, _FIGURE = "a table for a page or a paper (booktabs)", "the figure"
#: Every format by its suffix.
FORMATS = {
    each.suffix: each
    for each in (
        FileFormat(suffix=".html", content="page", holds="the page: see [Figures and reports](reports.md)"),
        FileFormat(suffix=".json", content="report", holds="the report without its maps"),
        FileFormat(
            suffix=".csv",
            content="table",
            holds="one row per result, one column per measure and one per error; `findings` has their codes",
            table="csv",
        ),
        FileFormat(suffix=".md", content="table", holds=_TABLE, table="markdown"),
        FileFormat(suffix=".tex", content="table", holds=_TABLE, table="latex"),
        FileFormat(suffix=".png", content="figure", holds=_FIGURE),
        FileFormat(suffix=".svg", content="figure", holds=_FIGURE),
        FileFormat(suffix=".pdf", content="figure", holds=_FIGURE),
        FileFormat(
            suffix=".npz",
            content="maps",
            holds="the maps, float64, each with its unit's centre and the first image; with `--unit all` the sizes of"
            " every unit, `ID.positions_r50` and `ID.positions_context_r50`",
        ),
    )
}
#: What tables are called, in the order of their suffixes.
TABLES = tuple(each.table for each in FORMATS.values() if each.table)


def suffixes(*contents: Content) -> tuple[str, ...]:
    """The suffixes of files that hold some content."""
    return tuple(suffix for suffix, each in FORMATS.items() if each.content in contents)
