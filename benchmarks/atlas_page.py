"""The page of the atlas: one file that sorts, filters and shows each map, and reaches for nothing."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from PIL import Image

from erfscope.show import rounded

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "atlas.html"
MEASURES = ("r50", "r90", "context_r50", "far_mass")


def write(
    rows: Mapping[str, Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    pictures: Mapping[str, str],
    made: Mapping[str, str],
) -> None:
    """Write ``docs/atlas.html``.

    Args:
        rows: The structures by name.
        results: The results of the models whose ERFs were measured.
        pictures: A grey PNG of each map, in base64, by name.
        made: The versions that it was made with.
    """
    sizes = {each["model"]: {name: _size(each["measures"][name]) for name in MEASURES} for each in results}
    cut = {each["model"] for each in results if any(found["code"] == "clipped" for found in each["warnings"])}
    models = [
        {
            "name": name,
            **row,
            **(
                {"sizes": sizes[name], "picture": coloured(pictures[name]), "cut": name in cut} if name in sizes else {}
            ),
        }
        for name, row in rows.items()
    ]
    # "<" would end the script.
    data = Markup(json.dumps(models, separators=(",", ":")).replace("<", "\\u003c"))
    versions = ", ".join(f"{name} {version}" for name, version in made.items())
    template = Environment(loader=FileSystemLoader(HERE), autoescape=True).get_template("atlas.html.j2")
    page = template.render(models=models, measured=len(sizes), versions=versions, data=data)
    PAGE.write_text(page, encoding="utf-8")


def _size(measure: Mapping[str, Any]) -> tuple[str, str | None, float]:
    """A value and its error as text, and the value."""
    return (*rounded(measure["value"], measure["se"]), measure["value"])


def coloured(picture: str) -> str:
    """A grey PNG in base64 in the colours of erfscope's maps."""
    grey = Image.open(io.BytesIO(base64.b64decode(picture)))
    table = (255 * matplotlib.colormaps["inferno"](np.arange(256))[:, :3]).round().astype(np.uint8)
    shown = Image.fromarray(np.asarray(grey)).convert("P")
    shown.putpalette(table.tobytes())
    sent = io.BytesIO()
    shown.save(sent, "PNG", optimize=True)
    return base64.b64encode(sent.getvalue()).decode()
