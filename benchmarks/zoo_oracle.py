"""Are default layer, unit centre and map what a plain computation gives, or is the refusal right? One row per model.

    python benchmarks/zoo_oracle.py -o build/zoo-oracle python benchmarks/zoo_oracle.py -o build/zoo-oracle --only
    timm,torchvision,transformers,others --models 'swin*,*vit*' --jobs 2

The plain computation (``zoo_plain.py``) shares no code with erfscope: the tensor comes from what a library documents or
from a hook, the map from ``torch.autograd``, the centre from offset and stride of the convolutions and poolings on the
way. A run that is interrupted goes on where it was; rows are JSON lines in the folder, and the table is written beside
them."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from lines import Lines
from zoo_built import BUILT, Built
from zoo_plain import Oracle, contribution, pictures, readout
from zoo_rows import CONVOLUTIONS, TINY, TRANSFORMERS

import erfscope
from erfscope import ErfscopeError

#: Largest relative L1 difference of two right maps in float64.
TOLERANCE = 1e-9
#: Two right maps of a model that is chaotic at random weights differ by at most so many times what one moves by under a
#: rounding.
CHAOS = 3
COLUMNS = (
    "group",
    "model",
    "input",
    "verdict",
    "layer",
    "map",
    "unit centre",
    "by plain arithmetic",
    "map off by",
    "s",
    "note",
)
PACKAGES = (
    "erfscope",
    "torch",
    "timm",
    "torchvision",
    "transformers",
    "monai",
    "segmentation_models_pytorch",
    "open_clip_torch",
)


def names() -> list[tuple[str, str]]:
    """(group, model) of every row; timm's are written ``name@side``."""
    lines = f"{CONVOLUTIONS}\n{TRANSFORMERS}\n{TINY}".strip().splitlines()
    timm_names = [word for line in lines if ": " in line for word in line.partition(": ")[2].split()]
    return [("timm", name) for name in dict.fromkeys(timm_names)] + [(row.group, row.name) for row in BUILT]


def judge(group: str, name: str) -> dict[str, Any]:
    """The row of one model, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    row = _timm(name) if group == "timm" else _built(next(row for row in BUILT if row.name == name))
    return {"group": group, "model": name, **row, "s": round(time.perf_counter() - start, 1)}


def _timm(text: str) -> dict[str, Any]:
    """A model of timm, by its name and as a live module."""
    name, _, side = text.partition("@")
    options = {"input_size": (int(side),) * 2} if side else {}
    adapter = erfscope.adapters.load(name, weights="random", seed=0, **options)
    size, module = tuple(adapter.preprocess.size), adapter.module.double().eval()
    live = _compare(module, module, Oracle.of_timm(module), adapter.preprocess.channels, size)
    if live["verdict"] != "right":
        return live
    named = _compare(
        name, module, Oracle.of_timm(module), adapter.preprocess.channels, size, weights="random", seed=0, **options
    )
    unlike = [key for key in ("layer", "map", "centre") if named[key] != live[key]]
    if named["verdict"] == "right" and unlike:
        named["note"] += f"; by name and live differ in {', '.join(unlike)}"
    return named if named["verdict"] != "right" else live | {"note": named["note"]}


def _built(row: Built) -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = row.make().double().eval()
    return _compare(
        module,
        module,
        Oracle.of_module(module, row.layers, row.spaces),
        row.channels,
        row.size,
        expected=row.expected,
        tolerance=row.tolerance,
    )


def _compare(
    model: Any,
    module: torch.nn.Module,
    oracle: Oracle,
    channels: int,
    size: tuple[int, ...],
    *,
    expected: str = "right",
    tolerance: float = TOLERANCE,
    **options: Any,
) -> dict[str, Any]:
    """Measure, and judge what was measured."""
    x = pictures(channels, size)
    row: dict[str, Any] = {
        "input": list(size),
        "layer": "",
        "map": [],
        "centre": [],
        "plain": "",
        "off": None,
        "note": "",
    }
    try:
        result = erfscope.analyze(
            model, images=x, convention=(readout, contribution), measures="r50", dtype="float64", **options
        )
    except ErfscopeError as error:
        return row | {"verdict": "wrong" if expected == "right" else "refused rightly", "note": f"refused: {error}"}
    if not result.ok or result.unit is None or result.map is None:
        return row | {
            "verdict": "wrong" if expected == "right" else "refused rightly",
            "note": f"refused: {result.error or result.status}",
        }
    unit = result.unit
    row |= {"layer": result.layer, "map": list(unit.map_shape), "centre": [round(c, 3) for c in unit.center_px]}
    if expected == "refused":
        return row | {"verdict": "wrong", "note": "measured, though its units stand on nothing"}
    truth = oracle.truth(x, result.layer, tuple(unit.map_shape), tuple(unit.index))
    if truth.map is None:
        return row | {"verdict": "wrong", "note": truth.note}
    off = float(np.abs(np.asarray(result.map.values) - truth.map).sum())
    chaos = 0.0
    if off > tolerance:  # by how much the plain map changes where the input changes by a rounding
        again = oracle.truth(x * (1 + 1e-15), result.layer, tuple(unit.map_shape), tuple(unit.index)).map
        chaos = 0.0 if again is None else float(np.abs(again - truth.map).sum())
    assumed = not unit.center_exact or any(finding.code == "assumed_layout" for finding in result.findings)
    right, place = truth.judge_centre(unit.center_px, exact=not assumed)
    notes = [truth.note, place if not right else ""]
    same = off <= max(tolerance, CHAOS * chaos)
    if off > tolerance:
        notes.append(
            f"chaotic: the plain map itself moves by {chaos:.0e} where the input moves by a rounding"
            if same
            else "the map differs"
        )
    verdict = "right" if right and same and not truth.note else "wrong"
    row |= {"plain": truth.centre_text + ("" if not assumed else " (said to be inexact)"), "off": off}
    return row | {"verdict": verdict, "note": "; ".join(note for note in notes if note)}


def _child(group: str, name: str, out: Any) -> None:
    try:
        out.send(judge(group, name))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        out.send({"group": group, "model": name, "verdict": "failed", "note": text})


def run(rows: Sequence[tuple[str, str]], journal: Lines, *, jobs: int, limit_s: float) -> None:
    """Judge what the journal does not have, each in a process of its own, and note each at once."""
    context = multiprocessing.get_context("fork")
    # Imported once, and inherited by every process.
    for package in (
        "erfscope.core.run.engine.measure",
        "timm",
        "torchvision",
        "transformers",
        "segmentation_models_pytorch",
    ):
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
    waiting = [row for row in rows if "/".join(row) not in journal.models]
    running: dict[tuple[str, str], tuple[Any, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            row, (mine, theirs) = waiting.pop(0), context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(*row, theirs), daemon=True)
            process.start()
            theirs.close()
            running[row] = (process, mine, time.perf_counter())
        for row, (process, mine, began) in list(running.items()):
            found: dict[str, Any] | None = None
            if mine.poll(0.05):
                try:
                    found = mine.recv()
                except EOFError:
                    found = {"verdict": "failed", "note": f"the process ended with {process.exitcode}"}
            elif time.perf_counter() - began > limit_s:
                process.kill()
                found = {"verdict": "failed", "note": f"took more than {limit_s:.0f} s"}
            if found is not None:
                process.join()
                line = {"group": row[0], "name": row[1], **found, "model": "/".join(row)}
                journal.add(
                    json.loads(json.dumps(line, default=str).replace("NaN", "null").replace("Infinity", "null"))
                )
                print(" | ".join(cells(line)), flush=True)
                del running[row]


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of one row."""
    shape = "x".join(str(side) for side in row.get("map") or []) or "–"
    centre = ", ".join(f"{c:g}" for c in row.get("centre") or []) or "–"
    off = "–" if row.get("off") is None else f"{row['off']:.0e}"
    return (
        row["group"],
        row["model"].partition("/")[2] or row["model"],
        "x".join(str(side) for side in row.get("input") or []) or "–",
        row["verdict"],
        row.get("layer") or "–",
        shape,
        centre,
        row.get("plain") or "–",
        off,
        str(row.get("s", "–")),
        row.get("note") or "",
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Counts and rows as Markdown."""
    counts = Counter(row["verdict"] for row in rows)
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("right", "refused rightly", "wrong", "failed"))
    installed = []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    lines = [
        f"{len(rows)} models: {words}. {', '.join(installed)}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    return (
        "\n".join([*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in rows)])
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, and write the table. Returns the number of rows that are wrong or failed, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "-o", dest="folder", type=Path, metavar="DIR", default=Path("build/zoo-oracle"), help="rows and table"
    )
    parser.add_argument(
        "--only", metavar="GROUPS", help="comma list of timm, torchvision, transformers, others; default: all"
    )
    parser.add_argument("--models", metavar="PATTERNS", help="comma list of shell patterns; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; default: 2")
    parser.add_argument("--time-limit", type=float, default=150.0, metavar="SECONDS", help="of one model; default: 150")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else None
    patterns = options.models.split(",") if options.models else ["*"]
    rows = [
        row
        for row in names()
        if (wanted is None or row[0] in wanted) and any(fnmatch.fnmatch(row[1], p) for p in patterns)
    ]
    journal = Lines(options.folder / "rows.jsonl", {"tolerance": TOLERANCE})
    run(rows, journal, jobs=options.jobs, limit_s=options.time_limit)
    asked = {"/".join(row) for row in rows}
    found = [row for name, row in journal.models.items() if name in asked]
    (options.folder / "table.md").write_text(table(found), encoding="utf-8")
    print(table(found).partition("\n")[0])
    return min(sum(row["verdict"] in ("wrong", "failed") for row in found), 99)


if __name__ == "__main__":
    sys.exit(main())
