"""How much of a model one unit needs, for a model of every timm family: recorded and cut, nothing is measured.

python benchmarks/cropped.py -o FILE
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from statistics import median
from typing import NamedTuple

from zoo_rows import CONVOLUTIONS, TRANSFORMERS

from erfscope import ErfscopeError
from erfscope.core import OpenModel, Request
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds
from erfscope.core.run.models import load_model
from erfscope.core.values.unit import sides
from erfscope.show import size_text

SIDE = 224
HEAD = ("model", "px", "record", "cut", "multiply-adds", "of the image", "path")
#: Hundreds of millions of parameters, which take minutes to draw.
LEFT_OUT = frozenset(
    (
        *("nasnetalarge", "pnasnet5large", "beit_base_patch16_224"),
        *("deepseek_vit_412m", "mobilenetv5_300m", "gemma4_vit_167m", "qwen3_vit_88m"),
    )
)


class Row(NamedTuple):
    """What the central unit of a model's default layer needs."""

    name: str
    size: tuple[int, ...]
    #: Seconds.
    record: float
    cut: float
    #: Of the multiply-adds of the same operations on whole tensors.
    share: float
    image: tuple[int, ...]
    #: Why the model itself is run; "" where its graph is.
    plain: str

    def cells(self) -> tuple[str, ...]:
        """As a line of the table."""
        times = f"{self.record:.2f} s", f"{self.cut:.2f} s"
        path = f"plain: {self.plain}" if self.plain else "graph"
        return (self.name, size_text(self.size), *times, f"{self.share:.1%}", size_text(self.image), path)


def models() -> list[str]:
    """The models of the zoo's families, without their sizes there."""
    lines = [line.partition(": ")[2] for text in (CONVOLUTIONS, TRANSFORMERS) for line in text.strip().splitlines()]
    names = [word.partition("@")[0] for line in lines for word in line.split()]
    return [name for name in dict.fromkeys(names) if name not in LEFT_OUT]


def opened(name: str) -> tuple[OpenModel, float]:
    """A model at 224 px, or at its own size where it takes no other, and the seconds that recording it took."""
    for size in ((SIDE, SIDE), None):
        try:
            loaded = load_model(name, Request.parse({}), size=size, weights="random")
            started = time.perf_counter()
            loaded.recording  # noqa: B018
        except ErfscopeError:
            if size is None:
                raise
        else:
            return loaded, time.perf_counter() - started
    raise AssertionError


def row(name: str) -> Row:
    """One line of the table."""
    loaded, record = opened(name)
    layer, size = loaded.default_layer, loaded.adapter.preprocess.size
    if why := loaded.why_plain(layer):
        return Row(name, size, record, 0.0, 1.0, size, why)
    unit = loaded.site(layer).nearest_unit()
    started = time.perf_counter()
    (crop,) = loaded.crops(loaded.site(layer), [unit])
    cut = time.perf_counter() - started
    some, whole = cropped_giga_multiply_adds(crop)
    return Row(name, size, record, cut, some / whole, sides(crop.image), "")


def summary(rows: list[Row]) -> str:
    """Shares from the smallest one on, and what all took."""
    shares = ", ".join(f"{each.name} {each.share:.1%}" for each in sorted(rows, key=lambda each: each.share))
    plain = [f"{each.name} ({each.plain})" for each in rows if each.plain]
    words = f"{len(rows)} models, {len(rows) - len(plain)} by the graph"
    words += f"; by the model itself: {', '.join(plain)}" if plain else ""
    seconds = [[each.record for each in rows], [each.cut for each in rows if not each.plain]]
    record, cut = (f"{median(each):.2f} s, at most {max(each):.2f} s" for each in seconds)
    return f"{words}. Median to record {record}; to cut {cut}.\n\n{shares}."


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table, too")
    output = parser.parse_args().output
    warnings.simplefilter("ignore")
    rows, lines = [], ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for name in models():
        rows.append(row(name))
        lines.append("| " + " | ".join(rows[-1].cells()) + " |")
        print(lines[-1], flush=True)
    print(summary(rows))
    if output is not None:
        output.write_text("\n".join([*lines, "", summary(rows)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
