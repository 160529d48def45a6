"""An image of 20,000 x 20,000 cells on disk through a small U-Net: killed halfway, resumed, and compared with the model
on some windows.

python benchmarks/tile_large.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from tile_tools import UNet

import erfscope
from erfscope import TilePlan

SIDE, TILE, WINDOW = 20_000, 2_000, 300


def start() -> tuple[UNet, TilePlan]:
    """The same model in each process, and its tiles."""
    torch.manual_seed(0)
    net = UNet(width=4).eval()
    return net, erfscope.tile(net, TILE, in_chans=1, input_size=256, image_size=SIDE)


def memory(key: str) -> int:
    """Memory of this process in MiB: ``RssAnon`` without files, ``VmHWM`` the most that was in memory with them."""
    lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) // 1024


def run(folder: Path) -> None:
    """Run all tiles that are not done."""
    net, plan = start()
    image, out = open_memmap(folder / "image.npy", "r"), open_memmap(folder / "output.npy", "r+")
    most, first = [0], [0]

    def progress(done: int, total: int) -> None:
        most[0], first[0] = max(most[0], memory("RssAnon")), first[0] or done
        print(f"{done}/{total}", end="\r", flush=True)

    erfscope.run_tiled(net, image, plan, out=out, resume=folder / "run.json", progress=progress)
    print(f"tiles from {first[0]}: at most {most[0]} MiB, {memory('VmHWM')} MiB with pages of the files")


def done_in(folder: Path) -> int:
    """Tiles that are written."""
    try:
        return int(json.loads((folder / "run.json").read_text(encoding="utf8"))["done"])
    except (OSError, ValueError):
        return 0


def main() -> None:
    """Write the image, run, kill, resume, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", action="store_true")
    args = parser.parse_args()
    if args.run:
        return run(args.folder)
    net, plan = start()
    rng, began = np.random.default_rng(0), time.monotonic()
    image = open_memmap(args.folder / "image.npy", "w+", np.float32, (1, SIDE, SIDE))
    for row in range(0, SIDE, TILE):
        image[0, row : row + TILE] = rng.random((TILE, SIDE), dtype=np.float32)
    open_memmap(args.folder / "output.npy", "w+", np.float32, (2, SIDE, SIDE))
    tiles = len(plan.windows(SIDE))
    print(f"halo {plan.halo}, {tiles} tiles, image written in {time.monotonic() - began:.0f} s")

    began, command = time.monotonic(), [sys.executable, __file__, str(args.folder), "--run"]
    first = subprocess.Popen(command)
    while done_in(args.folder) < tiles // 2 and first.poll() is None:
        time.sleep(0.2)
    first.kill()
    print(f"killed (exit code {first.wait()}) after {done_in(args.folder)} tiles")
    subprocess.run(command, check=True)
    print(f"all tiles in {time.monotonic() - began:.0f} s")

    output, worst = open_memmap(args.folder / "output.npy", "r"), 0.0
    for _ in range(50):
        row, column = (2 * int(each) for each in rng.integers(0, (SIDE - WINDOW) // 2, 2))
        crop = torch.from_numpy(np.array(image[None, :, row : row + WINDOW, column : column + WINDOW]))
        with torch.no_grad():
            whole = net(crop)[0, :, 20:-20, 20:-20].numpy()
        found = output[:, row + 20 : row + WINDOW - 20, column + 20 : column + WINDOW - 20]
        worst = max(worst, float(np.abs(found - whole).max()))
    print(f"50 windows: largest difference {worst:.1e}")
    return None


if __name__ == "__main__":
    main()
