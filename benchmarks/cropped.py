"""What the recorded operations show to be croppable, for a model of every timm family: plans alone, nothing is
measured.

python benchmarks/cropped.py -o FILE
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path

from zoo_rows import CONVOLUTIONS, TRANSFORMERS

from erfscope.api.models import load_model
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.geometry.unit import Unit

SIDE = 224
HEAD = ("model", "px", "plan", "cone", "cropped", "why not, or not more")
#: Hundreds of millions of parameters, which take minutes to draw.
LEFT_OUT = frozenset(
    (
        *("nasnetalarge", "pnasnet5large", "beit_base_patch16_224"),
        *("deepseek_vit_412m", "mobilenetv5_300m", "gemma4_vit_167m", "qwen3_vit_88m"),
    )
)


def models() -> list[str]:
    """The models of the zoo's families, without their sizes there."""
    lines = [line.partition(": ")[2] for text in (CONVOLUTIONS, TRANSFORMERS) for line in text.strip().splitlines()]
    names = [word.partition("@")[0] for line in lines for word in line.split()]
    return [name for name in dict.fromkeys(names) if name not in LEFT_OUT]


def opened(name: str) -> LoadedModel:
    """A model at 224 px, or at its own size where it takes no other."""
    for size in ((SIDE, SIDE), None):
        try:
            loaded = load_model(name, {}, size=size, weights="random")
            loaded.recording  # noqa: B018
        except ErfscopeError:
            if size is None:
                raise
        else:
            return loaded
    raise AssertionError


def row(name: str) -> tuple[str, ...]:
    """One line of the table."""
    loaded = opened(name)
    layer = loaded.default_layer
    unit = Unit(index=loaded.recording.default_unit(layer))
    started = time.perf_counter()
    cones = loaded.cones(layer, [unit])
    seconds = f"{time.perf_counter() - started:.1f} s"
    size = loaded.adapter.preprocess.size
    if cones is None:
        return (name, str(size[-1]), seconds, "100%", "nothing", "it has data-dependent control flow")
    cone = cones[0]
    is_cropped = cone.image != tuple((0, side) for side in size)
    made = {"the image": is_cropped, "inner maps": bool(cone.input_crops), "single cells": bool(cone.cellwise_crops)}
    words = ", ".join(word for word, is_so in made.items() if is_so) or "nothing"
    return (name, str(size[-1]), seconds, f"{cone.share:.1%}", words, cone.reason)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table, too")
    output = parser.parse_args().output
    warnings.simplefilter("ignore")
    rows = []
    for name in models():
        rows.append(row(name))
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    counts = Counter("whole" if each[4] == "nothing" else "cropped" for each in rows)
    head = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    text = "\n".join(
        [
            *head,
            *("| " + " | ".join(each) + " |" for each in rows),
            "",
            f"{counts['cropped']} cropped, {counts['whole']} whole.",
        ]
    )
    print(text.splitlines()[-1])
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
