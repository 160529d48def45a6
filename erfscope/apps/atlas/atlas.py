"""The kept atlas: every model of timm by its structure, and effective receptive fields (ERF) at random weights."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erfscope.core import ErfscopeError, to_json, unknown
from erfscope.show import (
    DASH,
    MISSING,
    Cell,
    Column,
    Note,
    Shown,
    Table,
    Value,
    format_table,
    number,
    rounded,
    rows_of,
    size_text,
)

if TYPE_CHECKING:
    from erfscope.core import Result

#: What ``benchmarks/atlas.py`` writes: structures, and a report of the ERFs.
STRUCTURES, ERFS = (Path(__file__).with_name(name) for name in ("structures.json", "erfs.json"))
SCHEMA = "erfscope.atlas/1"
#: The measures that the tables show.
SIZES = ("r50", "r90", "context_r50", "far_mass")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtlasEntry:
    """One model of timm at the size that it declares, from its recorded operations; they hold for any weights."""

    name: str
    #: The module of timm that has it.
    module: str = ""
    #: Height and width in pixels.
    input: tuple[int, ...] = ()
    #: The default layer, and (channels, rows, columns) of its map.
    layer: str | None = None
    shape: tuple[int, ...] = ()
    #: Distance between neighbouring units, and the place of the central one, in pixels; whether all paths agree on it.
    stride_px: tuple[float, ...] = ()
    center_px: tuple[float, ...] = ()
    center_exact: bool = True
    #: Side of the theoretical receptive field (TRF) without operations that mix all positions; whether it is exact, and
    #: the first such operation.
    trf_px: tuple[int, ...] = ()
    trf_exact: bool = True
    global_by: str | None = None
    #: Stride and TRF of each stage, along the first axis; None where an operation mixes all positions.
    stages: Mapping[str, tuple[float, int | None]]
    #: The first layer whose TRF exceeds the input, and the largest input that some layer sees whole without mixing.
    border_layer: str | None = None
    sees_whole_px: tuple[int, ...] = ()
    params: int | None = None
    gmacs: float | None = None
    #: (value, standard error) of measures at random weights; none where the ERF was not measured.
    sizes: Mapping[str, tuple[float, float | None]]
    #: Codes of what a reader of these has to know, such as ``clipped``: a part of the field lies outside of the input.
    findings: tuple[str, ...] = ()
    #: Why there is no structure.
    error: str | None = None

    @property
    def offset_px(self) -> tuple[float, ...]:
        """How far the central unit stands from the middle of the input."""
        return tuple(place - (side - 1) / 2 for place, side in zip(self.center_px, self.input, strict=False))

    @property
    def erf(self) -> Result:
        """The measured ERF, without its map; :func:`erfscope.compare` takes it beside models.

        Raises:
            ErfscopeError: it was not measured.
        """
        if not self.sizes:
            raise ErfscopeError(
                f"the atlas has no ERF of {self.name}; measure it: erfscope analyze {self.name} --weights random"
            )
        return _results()[self.name]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Atlas(Shown, Mapping[str, AtlasEntry]):
    """Models by their names. It prints as ``erfscope models`` does."""

    entries: Mapping[str, AtlasEntry]
    #: What it was made with.
    versions: Mapping[str, str]

    def __getitem__(self, name: str) -> AtlasEntry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def parts(self) -> Iterator[Table | Note]:
        """A table, and lines below it."""
        yield _table([*self.entries.values()])
        reasons = {each.error for each in self.entries.values() if each.error}
        yield from (Note(text=reason) for reason in sorted(reasons))
        yield Note(
            text="TRF: theoretical receptive field without operations that mix all positions; * sees everything by one."
            " Sizes of ERFs in px at random weights, seed 0, 20 synthetic images; ≥: the border of the input cuts them."
            f" timm {self.versions['timm']}"
        )

    def table(self, format: str = "plain") -> str:
        """As text: ``"plain"``, ``"csv"`` with all numbers, ``"markdown"`` or ``"latex"``.

        Raises:
            ErfscopeError: unknown format.
        """
        rows = [*self.entries.values()]
        return format_table(_numbers(rows) if format == "csv" else _table(rows), format)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, which ``atlas-1.json`` describes."""
        rows = {
            name: {each.name: getattr(row, each.name) for each in fields(row) if each.name != "name"}
            for name, row in self.entries.items()
        }
        document: dict[str, Any] = to_json({"schema": SCHEMA, "versions": dict(self.versions), "models": rows})
        return document


def erf_of(name: str) -> Result:
    """The kept ERF of the model of this name; see :attr:`AtlasEntry.erf`.

    Raises:
        ErfscopeError: there is no such model, or it was not measured.
    """
    if name not in _kept()["models"]:
        raise unknown("model", name, _kept()["models"], where="the atlas of timm")
    return models(name)[name].erf


def models(pattern: str | None = None) -> Atlas:
    """What is known of timm's models without running anything, from an atlas that erfscope keeps.

    Args:
        pattern: E.g. ``"*next*tiny*"``; a word without wildcards matches names that contain it; all models if None.

    Returns:
        The models by their names, as :class:`AtlasEntry`, those alone that fit.

    Raises:
        ErfscopeError: no model fits.
    """
    kept = _kept()
    glob = pattern if pattern is None or any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    names = [name for name in kept["models"] if glob is None or fnmatch.fnmatchcase(name, glob)]
    if not names:
        if glob == pattern:
            raise ErfscopeError(f"no model of the atlas of timm matches {pattern!r}")
        raise unknown("model", pattern or "", kept["models"], where="the atlas of timm")
    # The model of that name comes first, then those whose names begin so.
    names.sort(key=lambda name: (name != pattern, not name.startswith(pattern or "")))
    sizes = _sizes()
    entries = {name: _entry(name, kept["models"][name], *sizes.get(name, ({}, ()))) for name in names}
    return Atlas(entries=entries, versions=kept["versions"])


def _entry(name: str, row: Mapping[str, Any], sizes: Mapping[str, Any], findings: tuple[str, ...]) -> AtlasEntry:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    given["stages"] = {stage: tuple(found) for stage, found in row.get("stages", {}).items()}
    return AtlasEntry(name=name, sizes=sizes, findings=findings, **given)


@cache
def _kept() -> Any:
    return json.loads(STRUCTURES.read_text(encoding="utf-8"))


@cache
def _sizes() -> dict[str, tuple[dict[str, tuple[float, float | None]], tuple[str, ...]]]:
    """Of each measured model its sizes, and the codes of its findings."""
    return {
        row["model"]: (
            {name: (each["value"], each["se"]) for name, each in row["measures"].items()},
            tuple(finding["code"] for finding in row["warnings"]),
        )
        for row in json.loads(ERFS.read_text(encoding="utf-8"))["results"]
    }


@cache
def _results() -> dict[str, Result]:
    from erfscope import read

    return {result.model: result for result in read(ERFS).results}


def _table(rows: Sequence[AtlasEntry]) -> Table:
    """For people: columns that have no room go, the last ones first."""
    columns = (
        Column(name="model", kind="name", rank=0),
        Column(name="input", kind="structure", rank=2),
        Column(name="layer", kind="text", rank=4),
        Column(name="stride", kind="structure", rank=2),
        Column(name="TRF", kind="structure", rank=0),
        *(Column(name=name, kind="number", rank=rank) for name, rank in (("r50", 0), ("r90", 1))),
        *(Column(name=name, kind="number", rank=3) for name in ("context_r50", "far_mass")),
        Column(name="params", kind="structure", rank=2),
        Column(name="GMACs", kind="structure", rank=2),
        Column(name="seen whole up to", kind="structure", rank=5),
        Column(name="border layer", kind="text", rank=6),
    )
    return Table(columns=columns, rows=rows_of([_cells(row) for row in rows]))


def _cells(row: AtlasEntry) -> list[Value]:
    field = _side(row.trf_px) + ("*" if row.global_by else "") + ("" if row.trf_exact else "?")
    return [
        row.name,
        _side(row.input),
        row.layer or DASH,
        _side(row.stride_px),
        field,
        *(_size(row, name) for name in SIZES),
        DASH if row.params is None else f"{number(row.params / 1e6)} M",
        number(row.gmacs),
        _side(row.sees_whole_px),
        row.border_layer or DASH,
    ]


def _side(sides: Sequence[float]) -> str:
    """One number where all sides are equal."""
    texts = [f"{side:g}" for side in sides]
    return size_text(texts[:1] if len({*texts}) == 1 else texts) or DASH


def _size(row: AtlasEntry, name: str) -> Cell:
    """A size with its error; one that the border of the input cuts has a mark."""
    if name not in row.sizes:
        return MISSING
    value, error = row.sizes[name]
    text, spread = rounded(value, error)
    text = ("≥" if "clipped" in row.findings and name != "far_mass" else "") + text
    return Cell(text=text, value=value, error=None if spread is None else Cell(text=spread, value=error))


def _numbers(rows: Sequence[AtlasEntry]) -> Table:
    """Every number, for programs."""
    names = [each.name for each in fields(AtlasEntry) if each.name not in ("stages", "sizes")]
    names.insert(names.index("center_px") + 1, "offset_px")
    measures = list(dict.fromkeys(name for row in rows for name in row.sizes))
    columns = [*names, *(each for name in measures for each in (name, f"{name}_se"))]
    lines = [
        [
            *(_plain(getattr(row, name)) for name in names),
            *(each for name in measures for each in row.sizes.get(name, (None, None))),
        ]
        for row in rows
    ]
    return Table(columns=tuple(Column(name=name) for name in columns), rows=rows_of(lines))


def _plain(value: Any) -> Value:
    return size_text(value) if isinstance(value, tuple) else str(value) if isinstance(value, bool) else value
