"""Make the images of the terminal in docs/ from real runs: python examples/screenshots.py [NAME ...]

They need no network, neither to be made (the weights are random) nor to be shown (the SVG names fonts that the reader
has). Only what is measured in seconds can differ from run to run."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

import erfscope
from erfscope import Options
from erfscope.apps.gate.checks import CheckRequest, check_all
from erfscope.apps.gate.printing import styled
from erfscope.apps.gate.verdict import PYTHON
from erfscope.show.view.terminal.layers import layer_view
from erfscope.show.view.terminal.report import draw_report

LEAVES = "examples/leaves.png"
DOCS = Path("docs")
MODELS = ("resnet18", "convnext_atto", "mobilenetv3_small_100", "test_vit")
#: A small backbone with a dilated convolution and a squeeze-and-excitation gate.
NET = """
from torch import nn

class Gate(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * self.mix(self.pool(x)).sigmoid()

def backbone():
    net = nn.Sequential()
    net.add_module("stem", nn.Conv2d(3, 16, 7, 2, 3))
    net.add_module("act", nn.GELU())
    net.add_module("body", nn.Conv2d(16, 32, 3, 2, {dilation}, {dilation}))
    net.add_module("gate", Gate(32))
    net.add_module("head", nn.Conv2d(32, 32, 3, 2, 1))
    return net
"""
THEME = TerminalTheme(
    (24, 26, 31),
    (222, 224, 228),
    [
        (50, 54, 62),
        (240, 113, 120),
        (134, 200, 120),
        (233, 190, 109),
        (97, 175, 239),
        (198, 120, 221),
        (86, 182, 194),
        (200, 204, 212),
    ],
    [
        (110, 116, 128),
        (255, 140, 145),
        (160, 220, 145),
        (250, 210, 130),
        (130, 195, 255),
        (215, 150, 235),
        (120, 205, 215),
        (255, 255, 255),
    ],
)
#: rich's own format fetches a font from the network; this one takes what the reader has. Widths are set by textLength
#: all the same.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
 font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
rect {{ shape-rendering: crispEdges; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def analyze() -> list[RenderableType]:
    """One model on one image."""
    return [draw_report(erfscope.sweep("resnet18", images=LEAVES, weights="random"))]


def compare() -> list[RenderableType]:
    """Four models with their maps."""
    return [draw_report(erfscope.compare(list(MODELS), weights="random", samples=8, input_size=224))]


def stages() -> list[RenderableType]:
    """How the ERF of one model grows with depth."""
    return [draw_report(erfscope.sweep("resnet18", weights="random", samples=8, layer="stages"))]


@contextlib.contextmanager
def folder_with(net: str) -> Iterator[None]:
    """Work in a folder of its own, with ``nets.py`` in it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("nets.py").write_text(net, encoding="utf-8")
        yield


def layers() -> list[RenderableType]:
    """The layers of a small model with a global operation."""
    with folder_with(NET.format(dilation=4)):
        return [layer_view(erfscope.layers("nets.py:backbone", input_size=64), one=False, everything=False)]


def check() -> list[RenderableType]:
    """A gate that a model does not pass: a dilation was dropped since its baseline was written."""
    options: Options = {"input_size": 64, "samples": 8, "layer": "body"}
    advice = replace(PYTHON, accept="erfscope check --update")
    request = CheckRequest(name="backbone", model="nets.py:backbone", options=options, advice=advice)
    with folder_with(NET.format(dilation=4)):
        check_all([request])
        # Of another size, by which Python tells that what it compiled in the same second is of an earlier file.
        Path("nets.py").write_text(NET.format(dilation=1) + "\n", encoding="utf-8")
        return [styled(line) for line in check_all([request]).lines()]


#: Image -> (columns, the command that prints the same, what it shows).
PICTURES: dict[str, tuple[int, str, Callable[[], list[RenderableType]]]] = {
    "analyze": (84, f"erfscope analyze resnet18 --image {LEAVES} --weights random", analyze),
    "compare": (92, f"erfscope compare {' '.join(MODELS)} --weights random --samples 8 --input-size 224", compare),
    "stages": (100, "erfscope analyze resnet18 --layer stages --weights random --samples 8", stages),
    "layers": (84, "erfscope layers nets.py:backbone --input-size 64", layers),
    "check": (100, "erfscope check", check),
}


def draw(name: str) -> Path:
    """Make one image."""
    width, command, show = PICTURES[name]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(
            width=width, record=True, file=nowhere, force_terminal=True, color_system="truecolor", highlight=False
        )
        console.print(f"$ {command}", style="bold", markup=False)
        for line in show():
            console.print(line)
    path = DOCS / f"{name}.svg"
    path.write_text(
        smaller(console.export_svg(title="erfscope", theme=THEME, code_format=FORMAT, unique_id="t")), encoding="utf-8"
    )
    return path


def smaller(svg: str) -> str:
    """The same image in half as many bytes, with the map's half blocks as rectangles: as text they would depend on the
    reader's font."""

    def half(block: re.Match[str]) -> str:
        style, x, y, width = block[1], float(block[2]), float(block[3]), float(block[4])
        # A line of text is 24.4 high, its letters stand 20 below its top, and its background begins 1.5 below that.
        return f'<rect class="{style}" x="{x:g}" y="{y - 20 + 1.5:g}" width="{width + 0.25:g}" height="12.4"/>'

    svg = re.sub(r' clip-path="url\(#t-line-\d+\)"| shape-rendering="crispEdges"', "", svg)
    svg = re.sub(r'<clipPath id="t-line-\d+">.*?</clipPath>\n?', "", svg, flags=re.DOTALL)
    return re.sub(r'<text class="(t-r\d+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)">▀+</text>', half, svg)


def main() -> None:
    """Make the images that were named, or all."""
    os.chdir(Path(__file__).resolve().parent.parent)
    warnings.simplefilter("ignore", erfscope.FallbackWarning)
    for name in sys.argv[1:] or PICTURES:
        path = draw(name)
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
