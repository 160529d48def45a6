"""How long writing a report takes beside measuring it, part by part, and how large the HTML page is.

    python benchmarks/writing.py
    python benchmarks/writing.py --pictures 4 --input-size 96

Models have random weights: neither the time nor the size depends on training.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import erfscope
from erfscope import Report
from erfscope.core.answer.storage.files import map_bytes, report_bytes
from erfscope.show.figures.draw import folder_figures
from erfscope.show.page import html

MODELS = ("resnet18", "resnet34", "mobilenetv3_small_100", "convnext_atto", "efficientnet_b0", "vit_tiny_patch16_224")
#: What writing may add to the measuring, per model, and the page's part of it; and the size of a page of twelve models.
SECONDS, PAGE_SECONDS, PAGE_BYTES = 1.0, 0.15, 5e6
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--input-size", type=int, default=224)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    report, measuring = timed(
        lambda: erfscope.compare(MODELS, weights="random", samples=asked.pictures, input_size=asked.input_size)
    )
    once(report)
    parts = {
        "JSON": timed(lambda: report_bytes(report.to_json()))[1],
        "maps (.npz)": timed(lambda: [map_bytes([result]) for result in report])[1],
        "figures (.png)": timed(lambda: list(folder_figures(report.results)))[1],
        "page (.html)": timed(lambda: html(report))[1],
    }
    with tempfile.TemporaryDirectory() as folder:
        _, writing = timed(lambda: report.save(Path(folder) / "erf"))
    count = len(report)
    print(f"{count} models x {asked.pictures} pictures at {asked.input_size}")
    print(f"measuring       {measuring:7.2f} s  {measuring / count:6.3f} s per model")
    for name, seconds in parts.items():
        print(f"{name:<15} {seconds:7.2f} s  {seconds / count:6.3f} s per model")
    print(f"writing in all  {writing:7.2f} s  {writing / count:6.3f} s per model (aim: at most {SECONDS:g})")
    print(f"writing / measuring {writing / measuring:.2f}")
    print(f"page {parts['page (.html)'] / count:.3f} s per model (aim: at most {PAGE_SECONDS:g})")
    for many in (6, 12, 60):
        text, seconds = timed(lambda many=many: html(repeated(report, many)))
        aim = f" (aim: below {PAGE_BYTES / 1e6:g})" if many == 12 else ""
        print(f"page of {many:>2} models: {len(text.encode()) / 1e6:.2f} MB{aim}, {seconds:.2f} s")


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """What a function gives, and how long it took."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def once(report: Report) -> None:
    """Import what writing needs: that happens once in a process, whatever is written."""
    first = Report(results=report.results[:1])
    html(first)
    list(folder_figures(first.results))


def repeated(report: Report, count: int) -> Report:
    """The same results over again, each under a name of its own."""
    rows = [report.results[i % len(report)] for i in range(count)]
    named = [dataclasses.replace(row, id=f"{row.id}-{i}", label=f"{row.label} {i}") for i, row in enumerate(rows)]
    return dataclasses.replace(report, results=tuple(named))


if __name__ == "__main__":
    main()
