"""Is an input called too small where a larger one shows larger sizes? The estimate beside what is measured.

    python benchmarks/borders.py
    python benchmarks/borders.py --models 'resnet*,unet' --sides 96

Every stage of public models at random weights whose theoretical receptive field an input cuts, beside the same stage on
an input that cuts hardly anything of its ERF: the share of this ERF that lies outside the smaller input, the growth of
r50, and what is estimated of both from the smaller input. Prints tables in Markdown. Takes ten minutes on two cores."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn

import erfscope
from erfscope.core.answer.measures.border import lost_at_borders

#: Models of timm and torchvision, and a small U-Net.
MODELS = """
    test_resnet resnet18 resnet50 res2net50_14w_8s regnetx_002 densenet121 dla34 darknet53 vovnet39a repvgg_a0
    mobilenetv2_100 ghostnet_100 efficientnet_b0 convnext_atto inception_next_atto poolformer_s12 edgenext_xx_small
    hrnet_w18_small torchvision:vgg11 torchvision:squeezenet1_1 torchvision:fcn_resnet50
    torchvision:lraspp_mobilenet_v3_large unet
"""
#: Layers of those that declare no stages.
LAYERS = {
    "torchvision:vgg11": "features.10,features.15,features.20",
    "torchvision:squeezenet1_1": "features.7,features.12",
    "torchvision:fcn_resnet50": "backbone.layer3,classifier.4",
    "torchvision:lraspp_mobilenet_v3_large": "backbone.12,classifier.low_classifier",
    "unet": "merge.0,merge.3",
}
#: The findings on what the border cuts, and how strongly a table says them.
WORDS = {"clipped": "too small", "trf_cut": "TRF cut"}
#: The share of an ERF that may lie outside the larger input, by the estimate, if that counts as cutting nothing.
NOTHING = 0.01
#: The strong words are right where r50 grows by more.
MOVES = 0.05
#: Sides of the larger input.
LARGER = (512, 768, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stage of one model on one input, beside the same stage on a larger one."""

    model: str
    side: int
    small: erfscope.Result
    large: erfscope.Result

    @property
    def code(self) -> str:
        """The finding on what the border cuts; "" without."""
        return next((finding.code for finding in self.small.findings if finding.code in WORDS), "")

    @property
    def growth(self) -> float:
        """The growth of r50 that was measured."""
        return float(self.large["r50"]) / float(self.small["r50"]) - 1

    @property
    def outside(self) -> float:
        """The share of the larger input's ERF that lies outside the smaller one."""
        maps = (self.large.map, self.small.map)
        starts = [round(a - b) for a, b in zip(*(each.center_px for each in maps), strict=True)]
        window = tuple(slice(start, start + self.side) for start in starts)
        return 1 - float(self.large.map.values[window].sum() / self.large.map.values.sum())

    @property
    def estimate(self) -> tuple[float, float | None]:
        """The estimated share outside, and the estimated growth; None where the map is too small for one."""
        return lost_at_borders(self.small.map)

    @property
    def is_right(self) -> bool:
        """Whether the strong words stand where r50 grows by more than 5 % and than twice the error of its growth, and
        only there."""
        errors = ((each["r50"].se or 0) / float(each["r50"]) for each in (self.small, self.large))
        error = (self.growth + 1) * sum(each**2 for each in errors) ** 0.5
        return (self.growth > max(MOVES, 2 * error)) == (self.code == "clipped")


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. with padding, five levels and few channels."""

    def __init__(self, widths: Sequence[int] = (8, 16, 32, 64, 64)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(self._two(before, after) for before, after in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(after, before, 2, 2) for before, after in pairs[:0:-1])
        self.merge = nn.ModuleList(self._two(2 * before, before) for before, _ in pairs[:0:-1])

    @staticmethod
    def _two(before: int, after: int) -> nn.Sequential:
        layers = [(nn.Conv2d(size, after, 3, padding=1), nn.ReLU()) for size in (before, after)]
        return nn.Sequential(*(layer for pair in layers for layer in pair))

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.down[0](x)]
        for block in self.down[1:]:
            levels.append(block(nn.functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([levels.pop(), up(x)], 1))
        return x


def stages(name: str, side: int, samples: int) -> dict[str, erfscope.Result]:
    """The results of a model's stages on an input, by layer."""
    torch.manual_seed(0)
    model = UNet().eval() if name == "unet" else name
    asked = {} if name == "unet" else {"weights": "random"}
    layer = LAYERS.get(name, "stages")
    report = erfscope.sweep(model, layer=layer, input_size=side, samples=samples, measures="r50", **asked)
    return {result.layer: result for result in report if result.ok}


def rows(name: str, sides: Sequence[int], samples: int) -> Iterator[Row]:
    """The rows of one model: its stages whose TRF is cut, as far as a larger input holds their ERFs."""
    small = {(side, layer): result for side in sides for layer, result in stages(name, side, samples).items()}
    for larger in LARGER:
        small = {place: result for place, result in small.items() if WORDS.keys() & {f.code for f in result.findings}}
        found = stages(name, larger, samples) if small else {}
        for side, layer in [*small]:
            if layer in found and lost_at_borders(found[layer].map)[0] < NOTHING:
                yield Row(model=name, side=side, small=small.pop((side, layer)), large=found[layer])
    for side, layer in small:
        print(f"{name} {layer} at {side}: no input of {LARGER[-1]} px holds its ERF", file=sys.stderr, flush=True)


def line(row: Row) -> str:
    """A row of the table."""
    outside, growth = row.estimate
    shares = [f"{row.outside:.1%}", f"{outside:.1%}", f"{row.growth:.1%}", "–" if growth is None else f"{growth:.1%}"]
    said = WORDS[row.code] + ("" if row.is_right else " (wrong)")
    return f"| {' | '.join([row.model, row.small.layer, str(row.side), *shares, said])} |".replace("%", " %")


def summary(found: Sequence[Row]) -> Iterator[str]:
    """How far off the estimates are, and how often the words are wrong."""
    yield f"{len({row.model for row in found})} models, {len(found)} stages"
    shares = [(row.estimate[0], row.outside) for row in found]
    growths = [(row.estimate[1], row.growth) for row in found if row.estimate[1] is not None]
    for what, pairs in (("share of the ERF outside", shares), ("growth of r50", growths)):
        errors = [abs(estimate - measured) for estimate, measured in pairs]
        large = [estimate / measured for estimate, measured in pairs if measured > MOVES]
        near = sum(0.5 <= ratio <= 2 for ratio in large)
        yield f"{what}: {len(pairs)} estimates; error: median {median(errors):.1%}, worst {max(errors):.0%}"
        yield f"  measured above {MOVES:.0%}: {near} of {len(large)} estimates are half to twice of it"
    for code, word in WORDS.items():
        said = [row for row in found if row.code == code]
        yield f"{word}: {len(said)}, of which {sum(not row.is_right for row in said)} wrongly"


def table(found: Sequence[Row]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| model | layer | input | outside | estimate | growth | estimate | said |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    yield from map(line, found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", metavar="PATTERNS", default="*", help="comma list of shell patterns; default: all")
    parser.add_argument(
        "--sides", type=lambda text: [int(word) for word in text.split(",")], default=[96, 160], help="default: 96,160"
    )
    parser.add_argument("--samples", type=int, default=4, help="images; default: 4")
    asked = parser.parse_args(arguments)
    wanted = [name for name in MODELS.split() if any(fnmatch.fnmatch(name, word) for word in asked.models.split(","))]
    found = list[Row]()
    for name in wanted:
        found += rows(name, asked.sides, asked.samples)
        print(name, file=sys.stderr, flush=True)
    print(*table(found), "", *summary(found), "", "Of each model, the stage whose growth is nearest to 5 %:", sep="\n")
    of_models = ([row for row in found if row.model == name] for name in wanted)
    print(*table([min(each, key=lambda row: abs(row.growth - MOVES)) for each in of_models if each]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
