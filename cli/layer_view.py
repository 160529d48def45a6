"""The layers of a model in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from erfscope.layer_table import LayerRow, LayerTable, usable
from erfscope.tables import size_text
from erfscope.trf.field import Trf


def layer_view(table: LayerTable, *, one: bool, everything: bool) -> RenderableType:
    """All layers as a table, or everything about one of them."""
    if one:
        return _single(table, table.rows[0])
    rows = list(table.rows) if everything else usable(table.rows)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column("layer", overflow="fold")
    for name in ("shape", "stride", "TRF", "unit", "centre"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("global by", overflow="fold")
    for row in rows:
        trf = row.trf
        mark = " *" if row.stage else ""
        style = "bold" if row.name == table.default_layer else None
        about = "" if trf.center_exact else "~"
        grid.add_row(
            f"{row.name}{mark}",
            size_text(row.shape),
            _numbers(trf.stride_px),
            f"{'' if trf.exact else '≤'}{_numbers(trf.local_size_px)}",
            ",".join(str(i) for i in row.unit),
            about + ",".join(f"{c:g}" for c in trf.center_px),
            trf.global_by or "",
            style=style,
        )
    word = "px" if table.wrt == "image" else f"cells of {table.wrt}"
    note = (
        f"{table.model} at {size_text(table.input_size)}; sizes in {word}; * a stage; default layer {table.default_layer or '–'}. "
        "TRF leaves global operations out and names the first of them; ≤ is an upper bound."
    )
    left = len(table.rows) - len(rows)
    more = " 1 layer of one position is hidden; --all shows it." if left == 1 else ""
    if left > 1:
        more = f" {left} layers of one position are hidden; --all shows them."
    return Group(grid, Text(note + more, style="dim"))


def _single(table: LayerTable, row: LayerRow) -> RenderableType:
    trf = row.trf
    word = "px" if table.wrt == "image" else f"cells of {table.wrt}"
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts = [
        ("layer", row.name + (" (a stage)" if row.stage else "")),
        ("map", size_text(row.shape)),
        ("input", size_text(table.input_size)),
        ("unit", f"{','.join(str(i) for i in row.unit)} at {','.join(f'{c:g}' for c in trf.center_px)} {word}"),
        ("centre", "exact" if trf.center_exact else "estimated as (u + 1/2) S / s - 1/2"),
        ("stride", f"{_numbers(trf.stride_px)} {word}"),
        ("field", _field(trf, word)),
        ("box", _box(trf)),
        ("inside the reference", _inside(trf)),
        ("without global operations", f"{_numbers(trf.local_size_px)} {word}"),
        ("understood", "every operation" if trf.exact else f"an upper bound; not understood: {', '.join(trf.inexact_by)}"),
    ]
    if not trf.all_paths:
        facts.append(("paths", f"some paths from the image avoid {table.wrt}"))
    for name, text in facts:
        grid.add_row(Text(name, style="dim"), Text(text))
    return grid


def _numbers(values: tuple[float, ...] | tuple[int, ...]) -> str:
    texts = [f"{value:g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)


def _field(trf: Trf, word: str) -> str:
    return f"everything, by {trf.global_by}" if trf.is_global else f"{_numbers(trf.size_px)} {word}"


def _box(trf: Trf) -> str:
    return " x ".join(f"[{first}, {last}]" for first, last in trf.box_px)


def _inside(trf: Trf) -> str:
    return " x ".join(f"[{first}, {last}]" for first, last in trf.clipped_box_px)
