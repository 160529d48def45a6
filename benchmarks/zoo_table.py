"""Rows of the run over timm's models as Markdown: the table, what does not work and why, and what was not run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo_timm import Model

COLUMNS = ("model", "M", "status", "s", "input", "TRF", "r50", "context_r50")
#: In a cell without a value.
NONE = "–"


def report(rows: Sequence[Mapping[str, Any]], models: Sequence[Model]) -> str:
    """The three parts, as Markdown.

    Args:
        rows: One per measured model.
        models: All that there are.
    """
    parts = [
        "## What does not work",
        failures(rows),
        "## What was not run",
        missing(rows, models),
        "## The table",
        table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def spoken(row: Mapping[str, Any]) -> str:
    """A row as one line of a log."""
    return " | ".join((str(row["round"]), row["module"], *cells(row), row.get("error") or ""))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per model, by module."""
    lines = [f"| {' | '.join(('module', *COLUMNS))} |", f"|{'---|' * (len(COLUMNS) + 1)}"]
    shown = ""
    for row in sorted(rows, key=lambda row: (row["module"], row["parameters"] or 0, row["model"])):
        lines.append(f"| {' | '.join((row['module'] if row['module'] != shown else '', *cells(row)))} |")
        shown = row["module"]
    return "\n".join(lines)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of a row."""
    millions = NONE if row["parameters"] is None else f"{row['parameters'] / 1e6:.1f}"
    return (
        row["model"],
        millions,
        row["status"],
        f"{row['seconds']:.1f}",
        _by(row.get("input_px")),
        _field(row),
        *(NONE if row.get(name) is None else f"{row[name]:.1f}" for name in ("r50", "context_r50")),
    )


def _field(row: Mapping[str, Any]) -> str:
    """Side of the theoretical receptive field, and that without global operations where there are some."""
    if row.get("trf_px") is None:
        return NONE
    bound = "" if row.get("trf_exact", True) else " (upper bound)"
    return (f"global ({_by(row['local_trf_px'])})" if row["global_by"] else _by(row["trf_px"])) + bound


def _by(sides: Sequence[float] | None) -> str:
    if sides is None:
        return NONE
    words = [f"{side:g}" for side in sides]
    return words[0] if len(set(words)) == 1 else "x".join(words)


def failures(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows that are not ok, one line per kind of error, with all models that have it."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] != "ok":
            kinds.setdefault((row["status"], kind(row)), []).append(row)
    if not kinds:
        return "Every model that was measured is `ok`."
    lines = ["| status | models | first error |", "|---|---|---|"]
    for (status, _), found in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        error = (found[0]["error"] or NONE).replace("|", "/")
        lines.append(f"| {status} | {', '.join(row['model'] for row in found)} | {error} |")
    return "\n".join(lines)


def kind(row: Mapping[str, Any]) -> str:
    """An error without names and numbers, so that like errors are one."""
    text = (row["error"] or "").replace(row["model"], "MODEL")
    return re.sub(r"\d+(?:\.\d+)?", "N", re.sub(r"'[^']*'", "''", text))[:60]


def missing(rows: Sequence[Mapping[str, Any]], models: Sequence[Model]) -> str:
    """How many models have no row, and which modules have none at all."""
    run = {row["model"] for row in rows}
    left = [model for model in models if model.name not in run]
    if not left:
        return f"All {len(models)} models were run."
    touched = {model.module for model in models if model.name in run}
    none = sorted({model.module for model in left} - touched)
    by_module = Counter(model.module for model in left)
    sizes = [model.parameters for model in left if model.parameters is not None]
    lines = [f"{len(left)} of {len(models)} models; modules without any row: {', '.join(none) or 'none'}."]
    if sizes:
        lines.append(
            f"The smallest of them has {min(sizes) / 1e6:.1f} million parameters, the largest {max(sizes) / 1e6:.0f}."
        )
    lines.append(f"By module: {', '.join(f'{name} {count}' for name, count in by_module.most_common())}.")
    return " ".join(lines)
