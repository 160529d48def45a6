"""Peak memory of a run over ever more image files, which must not grow, and what worker processes save.

    python benchmarks/pictures.py
    python benchmarks/pictures.py --counts 100,1000 --workers 4

Every count is measured in a process of its own, on images that are generated into a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

#: Peak memory may differ by so much between the fewest and the most images.
TOLERANCE = 0.05
CHILD = """
import json, resource, sys, time, warnings
import erfscope
warnings.simplefilter("ignore")
folder, count, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
began = time.perf_counter()
options = dict(samples=count, workers=workers, weights="random", input_size=96, batch_size=16)
found = erfscope.analyze("test_resnet", images=folder, **options)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = time.perf_counter() - began
print(json.dumps({"peak": peak * 1024, "seconds": seconds, "r50": float(found["r50"]), "n": found.input.n_images}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="100,1000,10000")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    counts = [int(count) for count in asked.counts.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, max(counts))
        peaks = {}
        print(f"{'pictures':>9} {'workers':>8} {'peak MiB':>9} {'seconds':>8} {'ms each':>8} {'r50':>8}")
        for count in counts:
            for workers in dict.fromkeys((0, asked.workers)):
                found = run(folder, count, workers)
                peaks[count, workers] = found["peak"]
                each = 1000 * found["seconds"] / count
                print(
                    f"{count:9} {workers:8} {found['peak'] / 2**20:9.0f} {found['seconds']:8.1f} {each:8.1f}"
                    f" {found['r50']:8.2f}",
                    flush=True,
                )
    for workers in dict.fromkeys((0, asked.workers)):
        growth = peaks[counts[-1], workers] / peaks[counts[0], workers] - 1
        verdict = "ok" if abs(growth) <= TOLERANCE else "TOO MUCH"
        print(
            f"peak at {counts[-1]} against {counts[0]} images, {workers} workers: {growth:+.1%} (limit"
            f" {TOLERANCE:.0%}): {verdict}"
        )


def generate(folder: Path, count: int) -> None:
    """Small images of noise with some structure, in folders of a thousand."""
    numbers = np.random.default_rng(0)
    for index in range(count):
        place = folder / f"{index // 1000:03}"
        place.mkdir(exist_ok=True)
        coarse = numbers.integers(0, 256, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((160, 128)).save(place / f"{index:06}.jpg")


def run(folder: Path, count: int, workers: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(count), str(workers)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert found["n"] == count
    return found


if __name__ == "__main__":
    main()
