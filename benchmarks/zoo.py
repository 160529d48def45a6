"""One row per model family: can erfscope measure it at random weights, and are layer, stride, field and unit centre
what they should be?

    python benchmarks/zoo.py
    python benchmarks/zoo.py --models 'swin*,*vit*' --size 224 --until 120

The rows are small models on small inputs, so that all of them take about ten minutes of one core. An exception is a row
too.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from csv_rows import print_row
from zoo_rows import ZOO, ZooEntry

import erfscope

#: Images and random-sign draws per image: enough to see where a field is, not to publish its size.
SAMPLES, DRAWS = 4, 2
COLUMNS = (
    "family",
    "model",
    "status",
    "s",
    "layer",
    "map",
    "stride",
    "TRF",
    "unit centre",
    "r50",
    "r90",
    "centre share",
    "note",
)
#: Findings that a table of random nets need not repeat: the columns show them.
UNREMARKABLE = ("clipped", "reactivated", "own_cell_dominated", "weak_centre")


def measure(entry: ZooEntry, size: tuple[int, ...] | None) -> tuple[str, ...]:
    """One row of the table. Whatever goes wrong is its note."""
    start = time.perf_counter()
    options = {"samples": SAMPLES, "draws": DRAWS, "measures": "r50,r90,center_share,clipped", **entry.options}
    if isinstance(entry.model, str):
        options["weights"] = "random"
    if "images" not in options and (
        wanted := entry.size if entry.size and len(entry.size) == 3 else size or entry.size
    ):
        options["input_size"] = wanted
    try:
        model = entry.model if isinstance(entry.model, str) else entry.model()
        cells = _cells(erfscope.analyze(model, **options))
    except Exception as error:
        cells = ("raised", *("–" * 8), f"{type(error).__name__}: {error}".splitlines()[0])
    return (entry.family, entry.label, cells[0], f"{time.perf_counter() - start:.1f}", *cells[1:])


def _cells(result: erfscope.Result) -> tuple[str, ...]:
    """Everything about a result but its name and its time."""
    notes = [result.error] if result.error else []
    notes += [finding.text for finding in result.findings if finding.code not in UNREMARKABLE]
    note = "; ".join(dict.fromkeys(notes))
    if result.unit is None or result.trf is None:
        return (result.status, result.layer or "–", *("–" * 7), note)
    trf, unit = result.trf, result.unit
    field_text = f"global by {trf.global_by}; local {_by(trf.local_size_px)}" if trf.is_global else _by(trf.size_px)
    numbers = (
        [f"{float(result[name]):.{digits}f}" for name, digits in (("r50", 1), ("r90", 1), ("center_share", 2))]
        if result.measures
        else ["–"] * 3
    )
    return (
        result.status,
        result.layer,
        f"{_by(result.input.size)} → {_by(unit.map_shape)}",
        _by(unit.stride_px),
        field_text + ("" if trf.exact else " (upper bound)"),
        f"{_at(unit.index)} at {_at(unit.center_px)} {'exact' if unit.center_exact else 'assumed'}",
        *numbers,
        note,
    )


def _at(numbers: Sequence[float]) -> str:
    return f"({', '.join(f'{number:g}' for number in numbers)})"


def _by(numbers: Sequence[float]) -> str:
    """``32`` where all are equal, else ``32x16``."""
    words = [f"{number:g}" for number in numbers]
    return words[0] if len(words) == 2 and words[0] == words[1] else "x".join(words)


def chosen(patterns: str | None) -> Iterator[ZooEntry]:
    """The entries whose model or family matches one of the patterns."""
    for entry in ZOO:
        names = (entry.label.lower(), entry.family.lower())
        if patterns is None or any(
            fnmatch.fnmatch(name, p.strip().lower()) for p in patterns.split(",") for name in names
        ):
            yield entry


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the number of rows that are not ok, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--models", metavar="PATTERN", help="comma list of shell patterns on model or family; default: all"
    )
    parser.add_argument(
        "--until", type=float, metavar="SECONDS", default=1800.0, help="start no row after so many seconds"
    )
    parser.add_argument("--size", metavar="N|HxW", help="input size of every row of images, instead of each row's own")
    options = parser.parse_args(arguments)
    size = tuple(int(side) for side in options.size.lower().split("x")) if options.size else None
    size = size * 2 if size and len(size) == 1 else size
    began, bad = time.perf_counter(), 0
    versions = ", ".join(f"{name} {version(name)}" for name in ("erfscope", "torch", "torchvision", "timm"))
    about = f"{versions}; {SAMPLES} images, {DRAWS} draws each; threads: {torch.get_num_threads()}"
    print(about, file=sys.stderr)
    print_row(COLUMNS)
    rows = list(chosen(options.models))
    for entry in rows:
        late = time.perf_counter() - began > options.until
        row = (entry.family, entry.label, "not run", *("–" * 9), "budget spent") if late else measure(entry, size)
        bad += row[2] != "ok"
        print_row(row)
    print(f"{len(rows) - bad} of {len(rows)} ok, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return min(bad, 99)


if __name__ == "__main__":
    sys.exit(main())
