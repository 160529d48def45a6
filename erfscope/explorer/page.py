"""The page of an explorer: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from erfscope.explorer.stages import ENCLOSED, MEASURED, ExploredUnit, Stage
from erfscope.maps.density_region import BRIGHTNESS, SHARES
from erfscope.printable import printable
from erfscope.results.result import Result
from erfscope.storage.writing import write_bytes
from erfscope.view import page, words


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploredModel:
    """One model on one image."""

    #: Model, weights, convention and image, as for the first unit.
    conditions: Result
    #: The image as the model is given it, uint8 (H, W, C).
    picture: NDArray[np.uint8]
    #: Random draws that each map is averaged over, as text.
    draws: str
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """Units of every stage of one model or two, to be pointed at on a page."""

    models: tuple[ExploredModel, ...]
    #: The colours of a map from nothing to the strongest, uint8 (256, 3).
    colours: NDArray[np.uint8]

    def to_html(self) -> str:
        """The page: one file with its pictures, numbers, style and script."""
        folder = files("erfscope.explorer") / "templates"
        template, style, script = (
            (folder / name).read_text(encoding="utf-8") for name in ("explorer.html.j2", "explorer.css", "explorer.js")
        )
        conditions = [model.conditions for model in self.models]
        document = json.dumps(self._document(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        text: str = page.template_of(template).render(
            labels=[result.label for result in conditions],
            facts=[_facts(model) for model in self.models],
            shouts=list(dict.fromkeys(filter(None, map(words.random_weights, conditions)))),
            document=Markup(document),
            **page.assets(script, style),
        )
        return text

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the page.

        Args:
            path: Its file, such as ``explorer.html``.
            force: Whether to replace a file of that name.

        Raises:
            ErfscopeError: it exists, or cannot be written.
        """
        write_bytes(Path(path), self.to_html().encode(), force=force)

    def __repr__(self) -> str:
        stages = [f"{model.conditions.label} ({len(model.stages)} layers)" for model in self.models]
        return f"Explorer of {' and '.join(stages)}: save('explorer.html') writes its page, and notebooks show it"

    def _display_(self) -> Any:
        """What marimo shows: the page, or text where anywidget is not installed."""
        try:
            from erfscope.explorer.widget import ExplorerWidget
        except ImportError:
            return f"{self!r} after pip install 'erfscope[explore]'"
        return ExplorerWidget(page=self.to_html())

    def _repr_mimebundle_(self, **_: object) -> Any:
        """The same in Jupyter."""
        shown = self._display_()
        if isinstance(shown, str):
            return {"text/plain": shown}
        data, metadata = shown._repr_mimebundle_()
        return {**data, "text/plain": repr(self)}, metadata

    def _document(self) -> dict[str, Any]:
        """What the script reads."""
        return {
            "models": [_model(model) for model in self.models],
            "colours": _base64(self.colours.tobytes()),
            "shares": SHARES,
            "brightness": BRIGHTNESS,
            "enclosed": ENCLOSED,
            "gloss": {name: words.GLOSS[name] for name in MEASURED},
        }


def _facts(model: ExploredModel) -> list[str]:
    """The conditions of a model, each in a few words."""
    result = model.conditions
    size = "x".join(map(str, result.input.size))
    return [
        words.weights_condition(result).alone,
        f"input {size} px",
        f"convention {words.convention_text(result)}",
        model.draws,
        # Only the file's name: the page may be published.
        Path(result.input.text).name if result.input.text_kind == "file" else result.input.text,
    ]


def _model(model: ExploredModel) -> dict[str, Any]:
    buffer = io.BytesIO()
    grey = np.rint(model.picture.mean(axis=-1)).astype(np.uint8)
    Image.fromarray(grey).save(buffer, format="JPEG", quality=85)
    return {
        "label": model.conditions.label,
        "size": model.picture.shape[:2],
        "picture": f"data:image/jpeg;base64,{_base64(buffer.getvalue())}",
        "stages": [_stage(stage) for stage in model.stages],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": printable(stage.name),
        "space": stage.space,
        "grid": stage.grid,
        "stride": stage.stride_px,
        "trf": stage.trf_px,
        "global": stage.global_by,
        "block": stage.block,
        "units": [_unit(unit, stage.block) for unit in stage.units],
        "levels": _base64(b"".join(unit.levels.tobytes() for unit in stage.units)),
    }


def _unit(unit: ExploredUnit, block: int) -> dict[str, Any]:
    return {
        "index": unit.index,
        "at": unit.center_px,
        "trf": unit.trf_px,
        "field": unit.field_px,
        # The first block of its map, and how many there are, (rows, cols).
        "first": [first // block for first, _ in unit.field_px],
        "blocks": unit.levels.shape,
        "numbers": [unit.measures.get(name) for name in MEASURED],
        "radii": [round(radius, 2) for radius in unit.radii_px],
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
