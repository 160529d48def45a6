"""Time and memory of runs of many images and of reports of many models, each at three sizes, so that growth is seen.

    python benchmarks/scale.py
    python benchmarks/scale.py --images 100,200,400 --models 35,70,140

Images are small files, models tiny; every step is measured in a process of its own. Seconds, MiB above what the process
holds before the step, and the growth of both over the last doubling: 2 where it is linear. Linux only. The page is
opened in headless Chromium, where it is installed with its driver.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import os
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import psutil
import torch
from pictures import generate
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from torch import nn

import erfscope
from erfscope import Report
from erfscope.core.answer.storage.files import store_rows
from erfscope.show.page import html

SHARDS, SIZE = 8, 32
#: Seconds and bytes of a step.
Cost = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", metavar="N,...", default="2500,5000,10000")
    parser.add_argument("--models", metavar="N,...", default="350,700,1400")
    options = parser.parse_args()
    images, models = ([int(each) for each in text.split(",")] for text in (options.images, options.models))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        generate(folder / "pictures", max(images))
        show("images, one model", images, {
            "plan": lambda count: alone(plan_images, folder, count),
            "measure, one process": lambda count: alone(measure_images, folder, count),
            "measure, two ranks": lambda count: two_ranks(folder, count),
            f"measure, {SHARDS} shards": lambda count: alone(measure_shards, folder, count),
            "merge": lambda count: alone(merge_shards, folder, count),
        })  # fmt: skip
        show("models", models, {
            "measure, with rows": lambda count: alone(measure_models, folder, count),
            "plan, all stored": lambda count: alone(plan_models, folder, count),
            "store rows": lambda count: alone(store_models, folder, count),
            "merge two shards": lambda count: alone(merge_models, folder, count),
            "write": lambda count: alone(write_models, folder, count),
            "read": lambda count: alone(read_models, folder, count),
            "page": lambda count: alone(write_page, folder, count),
            "open page": partial(open_page, folder),
        })  # fmt: skip


def show(of: str, counts: Sequence[int], steps: dict[str, Callable[[int], Cost]]) -> None:
    """Measure each step at each size, and print a table."""
    growth = f"x at {counts[-1] / counts[-2]:g} times as many"
    print(f"\n| {of} | {' | '.join(map(str, counts))} | {growth} |\n|{'---|' * (2 + len(counts))}", flush=True)
    by_count = [[step(count) for step in steps.values()] for count in counts]
    for name, costs in zip(steps, zip(*by_count, strict=True), strict=True):
        cells = [f"{seconds:.2f} s, {taken / 2**20:,.0f} MiB" for seconds, taken in costs]
        ratios = (last / max(before, 1e-9) for before, last in zip(*costs[-2:], strict=True))
        print(f"| {name} | {' | '.join(cells)} | {', '.join(f'{ratio:.1f}' for ratio in ratios)} |", flush=True)


def alone(step: Callable[..., Cost], *arguments: Any) -> Cost:
    """Run a step in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=context()) as pool:
        return pool.submit(step, *arguments).result()


def context() -> BaseContext:
    """Processes that start with everything imported."""
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["erfscope.adapters", "erfscope.core.run.analysis", "erfscope.show.page", "selenium"]
    )
    return context


@dataclasses.dataclass
class Step:
    """What a block takes: its seconds, and the growth of the process's peak memory."""

    seconds: float = 0.0
    bytes: float = 0.0

    @property
    def cost(self) -> Cost:
        return self.seconds, self.bytes


@contextlib.contextmanager
def measured() -> Any:
    """Measure a block, after a call that loads what a process loads once."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    html(sweep(None, 4))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak so far.
    before, began, step = memory("VmRSS"), time.process_time(), Step()
    yield step
    step.seconds, step.bytes = time.process_time() - began, memory("VmHWM") - before


def memory(name: str, process: int | str = "self") -> int:
    """Bytes of a process, its peak (VmHWM) or now (VmRSS)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))


def sweep(images: Path | None, count: int, **options: Any) -> Report:
    """Measure the tiny net on some image files, or on synthetic ones."""
    given = {} if images is None else {"images": images}
    return erfscope.sweep(net(), label="net", input_size=SIZE, samples=count, **given, **options)


def plan_images(folder: Path, count: int) -> Cost:
    """All that is done before the first image goes through, and what ends a run at once."""
    with measured() as step:
        sweep(folder / "pictures", count, stop=lambda: True, batch_size=1)
    return step.cost


def measure_images(folder: Path, count: int) -> Cost:
    with measured() as step:
        sweep(folder / "pictures", count)
    return step.cost


def two_ranks(folder: Path, count: int) -> Cost:
    """The slower rank's seconds, and the memory of the larger."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with ProcessPoolExecutor(2, mp_context=context()) as pool:
        costs = [pool.submit(measure_rank, folder, count, rank, port) for rank in (0, 1)]
        seconds, taken = zip(*(each.result() for each in costs), strict=True)
    return max(seconds), max(taken)


def measure_rank(folder: Path, count: int, rank: int, port: int) -> Cost:
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with measured() as step:
        os.environ |= {name: str(value) for name, value in given.items()}
        with erfscope.distributed():
            sweep(folder / "pictures", count)
    return step.cost


def measure_shards(folder: Path, count: int) -> Cost:
    """One after the other."""
    with measured() as step:
        for number in range(1, SHARDS + 1):
            report = sweep(folder / "pictures", count, shard=f"{number}/{SHARDS}")
            report.save(folder / f"shard-{number}", drawn=False, force=True)
    return step.cost


def merge_shards(folder: Path, _count: int) -> Cost:
    with measured() as step:
        erfscope.merge([folder / f"shard-{number}" for number in range(1, SHARDS + 1)])
    return step.cost


def measure_models(folder: Path, count: int) -> Cost:
    """As ``compare -o DIR`` does, which stores every row as it is finished."""
    rows = folder / "compared"
    shutil.rmtree(rows, ignore_errors=True)
    models = {f"net {number}": net() for number in range(count)}
    with measured() as step:
        erfscope.compare(models, input_size=SIZE, samples=4, keep_in=rows)
    return step.cost


def plan_models(folder: Path, count: int) -> Cost:
    """As ``--resume`` does where nothing is left to measure."""
    models = {f"net {number}": net() for number in range(count)}
    with measured() as step:
        erfscope.compare(models, input_size=SIZE, samples=4, resume=folder / "compared")
    return step.cost


def store_models(folder: Path, count: int) -> Cost:
    report, rows = repeated(sweep(None, 4), count), folder / "rows"
    shutil.rmtree(rows, ignore_errors=True)
    with measured() as step:
        for row in report:
            store_rows(rows, dataclasses.replace(report, results=(row,)), earlier=None)
    return step.cost


def merge_models(_folder: Path, count: int) -> Cost:
    shards = [repeated(sweep(None, 4, shard=f"{number}/2"), count) for number in (1, 2)]
    with measured() as step:
        erfscope.merge(shards)
    return step.cost


def write_models(folder: Path, count: int) -> Cost:
    """Without page and figures."""
    report = repeated(sweep(None, 4), count)
    with measured() as step:
        report.save(folder / "report", drawn=False, force=True)
    return step.cost


def read_models(folder: Path, _count: int) -> Cost:
    with measured() as step:
        erfscope.read(folder / "report")
    return step.cost


def write_page(folder: Path, count: int) -> Cost:
    report = repeated(sweep(None, 4), count)
    with measured() as step:
        (folder / "page.html").write_text(html(report), encoding="utf-8")
    return step.cost


def open_page(folder: Path, _count: int) -> Cost:
    """Seconds until the page has loaded and was laid out once, and the memory of the browser's processes above that of
    an empty page."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = shutil.which("chromedriver")
    if not (driver and options.binary_location):
        return float("nan"), float("nan")
    service = ChromeService(driver)
    with Chrome(options=options, service=service) as browser:
        browser.get("about:blank")
        processes = psutil.Process(service.process.pid).children(recursive=True)
        before, began = sum(memory("VmRSS", each.pid) for each in processes), time.perf_counter()
        browser.get((folder / "page.html").as_uri())
        browser.execute_script("return document.body.offsetHeight")
        seconds = time.perf_counter() - began
        processes = psutil.Process(service.process.pid).children(recursive=True)
        return seconds, sum(memory("VmRSS", each.pid) for each in processes) - before


def repeated(report: Report, count: int) -> Report:
    """Its only result over again, each under a name of its own."""
    (row,) = report
    named = (dataclasses.replace(row, id=f"{row.id}-{i}", label=f"{row.label} {i}") for i in range(count))
    return dataclasses.replace(report, results=(*named,))


if __name__ == "__main__":
    main()
