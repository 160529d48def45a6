"""Measure standard errors against the number of images and draws: ``python docs/how_many_images.py``.

Writes docs/how_many_images.png, and the table of docs/errors.md between its two marks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import erfscope

HERE = Path(__file__).resolve().parent
MODELS = ("resnet18", "vit_tiny_patch16_224")
IMAGES, DRAWS, SEEDS = (5, 10, 20, 40, 80), (1, 4), (0, 1, 2)
MEASURES = ("r50", "context_r50")
#: Pixels; small, so that this takes minutes.
INPUT = 128
MARKS = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", flags=re.DOTALL)
#: Relative standard errors in per cent, by (model, measure, draws), one for each number of images.
Curves = Mapping[tuple[str, str, int], Sequence[float]]


def errors(model: str, images: int, draws: int, seeds: Sequence[int]) -> dict[str, float]:
    """Relative standard error of every measure in per cent, the root of its mean square over seeds of weights, images
    and draws."""
    found = [
        erfscope.analyze(
            model,
            weights="random",
            input_size=INPUT,
            samples=images,
            draws=draws,
            seed=seed,
            measures=",".join(MEASURES),
        )
        for seed in seeds
    ]
    return {
        name: 100 * float(np.sqrt(np.mean([(each[name].se / float(each[name])) ** 2 for each in found])))
        for name in MEASURES
    }


def curves(models: Sequence[str] = MODELS, images: Sequence[int] = IMAGES, seeds: Sequence[int] = SEEDS) -> Curves:
    """The errors of all models for all numbers of images and draws."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for model in models:
        for draws in DRAWS:
            for count in images:
                for name, error in errors(model, count, draws, seeds).items():
                    found.setdefault((model, name, draws), []).append(error)
    return found


def table(measured: Curves, images: Sequence[int] = IMAGES) -> str:
    """The curves as a table in Markdown."""
    head = ["model", "measure", "draws per image", *(f"{count} images" for count in images)]
    rows = [
        [model, f"`{name}`", str(draws), *(f"{error:.2g} %" for error in row)]
        for (model, name, draws), row in measured.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---", "---", *["---:"] * (len(head) - 2)], *rows))


def draw(measured: Curves, images: Sequence[int] = IMAGES) -> Figure:
    """One panel per model: error against images, on two logarithmic axes, with the slope of independent images beside
    it."""
    models = list(dict.fromkeys(model for model, _, _ in measured))
    figure = Figure(figsize=(7.2, 3.0), dpi=150, layout="constrained")
    for ax, model in zip(figure.subplots(1, len(models), sharey=True, squeeze=False)[0], models, strict=True):
        for (_, name, draws), row in ((key, row) for key, row in measured.items() if key[0] == model):
            style = {
                "color": "#1f4e9c" if name == MEASURES[0] else "#c4511f",
                "linestyle": "--" if draws == DRAWS[0] else "-",
            }
            ax.loglog(
                images,
                row,
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=f"{name}, {draws} draw{'s' * (draws > 1)} per image",
                **style,
            )
        top = max(row[0] for key, row in measured.items() if key[0] == model)
        ax.loglog(
            images,
            [top * (images[0] / count) ** 0.5 for count in images],
            color="grey",
            linewidth=0.8,
            label="1 / sqrt(images)",
        )
        ax.set_xticks(list(images), labels=[str(count) for count in images])
        ax.xaxis.set_minor_locator(ax.xaxis.get_minor_locator().__class__(subs=()))
        ax.yaxis.set_major_formatter("{x:g} %")
        ax.set_title(f"{model}, random weights", fontsize=9)
        ax.set_xlabel("images", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.legend(fontsize=6.5, frameon=False)
    figure.axes[0].set_ylabel("relative standard error", fontsize=8)
    return figure


if __name__ == "__main__":
    measured = curves()
    draw(measured).savefig(HERE / "how_many_images.png")
    page = HERE / "errors.md"
    page.write_text(MARKS.sub(rf"\g<1>{table(measured)}\n\g<2>", page.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(measured))
