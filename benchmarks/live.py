"""How long the live explorer takes to answer, beside one map of the same unit in the same process's model.

    python benchmarks/live.py
    python benchmarks/live.py --models resnet18,vit_small_patch16_224 --rounds 5

An answer is the whole way: the request, the map, its measures, and their text back over the socket. A map is what the
short script that people copy takes: one forward pass up to the stage, and one backward pass for every random draw.
Both take turns, on another unit in every round.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from http.client import HTTPConnection
from statistics import median
from typing import Any
from urllib.parse import urlencode, urlsplit

import timm
import torch

from erfscope.core.images import synthetic

SIZE = 224
#: Times as long as one map, at most.
LIMIT = 3.0
PIXELS = synthetic("leaves", samples=1, seed=0, size=(SIZE, SIZE), channels=3).pixels(0)
PICTURE = torch.from_numpy(PIXELS.copy()).permute(2, 0, 1)[None].float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet50")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    print(f"{'model':24} {'stage':10} {'draws':>5} {'one map':>9} {'answer':>9} {'ratio':>6}")
    ratios = []
    for name in asked.models.split(","):
        net = timm.create_model(name, pretrained=False).eval()
        stages = [each["module"] for each in net.feature_info]
        for draws in (1, 8):
            ratios += compare(name, net, stages, draws, asked.rounds)
    verdict = "ok" if max(ratios) < LIMIT else "TOO SLOW"
    print(f"an answer takes at most {max(ratios):.2f} times as long as one map (limit {LIMIT:g}): {verdict}")
    sys.exit(verdict != "ok")


def compare(name: str, net: Any, stages: list[str], draws: int, rounds: int) -> list[float]:
    """Print a line for every stage, and return the ratios."""
    options = ["--weights", "random", "--input-size", str(SIZE), "--draws", str(draws)]
    command = [sys.executable, "-m", "erfscope", "explore", name, "--serve", *options]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = urlsplit(re.search(r"http\S+", process.stdout.readline())[0])  # type: ignore[index]
        try:
            connection = HTTPConnection(address.netloc)
            for stage, layer in enumerate(stages):
                maps, answers = [], []
                for number in range(rounds + 1):
                    unit = place(net, stage, number, rounds)
                    maps.append(timed(lambda unit=unit, stage=stage: one_map(net, stage, unit, draws)))
                    answers.append(timed(lambda unit=unit, layer=layer: ask(connection, address.path, layer, unit)))
                # The first round warms both up.
                ratio = median(b / a for a, b in zip(maps[1:], answers[1:], strict=True))
                seconds = f"{median(maps[1:]):8.3f}s {median(answers[1:]):8.3f}s"
                print(f"{name:24} {layer:10} {draws:5} {seconds} {ratio:6.2f}", flush=True)
                found.append(ratio)
        finally:
            process.terminate()
    return found


def place(net: Any, stage: int, number: int, rounds: int) -> tuple[int, int]:
    """Another unit in every round, along the diagonal."""
    side = SIZE // net.feature_info[stage]["reduction"]
    return ((number + 1) * side // (rounds + 2),) * 2


def one_map(net: Any, stage: int, unit: tuple[int, int], draws: int) -> None:
    x = PICTURE.clone().requires_grad_(True)
    y = net.forward_intermediates(x, indices=[stage], norm=False, stop_early=True, intermediates_only=True)[0]
    channels = y[0, :, unit[0], unit[1]]
    squares = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for draw in range(draws):
        signs = torch.randint(2, channels.shape) * 2.0 - 1
        gradient = torch.autograd.grad((channels * signs).sum(), x, retain_graph=draw < draws - 1)[0]
        squares += gradient[0].double().square().sum(0)


def ask(connection: HTTPConnection, path: str, layer: str, unit: tuple[int, int]) -> None:
    query = {"model": 0, "stage": layer, "unit": f"{unit[0]},{unit[1]}"}
    connection.request("GET", f"{path}unit?{urlencode(query)}", headers={"Connection": "close"})
    assert "levels" in json.loads(connection.getresponse().read())


def timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
