"""The page of an explorer: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from erfscope.engine.outcome import pending_result
from erfscope.engine.plan import Plan
from erfscope.errors import ErfscopeError
from erfscope.explorer.stages import ENCLOSED, MEASURED, ExploredUnit, Stage
from erfscope.geometry.names import IMAGE, input_name, is_input
from erfscope.maps.drawn import BRIGHTNESS, SHARES
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
    #: Rows and columns of what units are differentiated by: the image, or the map of an inner layer.
    size: tuple[int, ...]
    #: Random draws that each map is averaged over, as text; "" for a convention without.
    draws: str
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice on a live page: the name and the text of its field, the words to choose from, and the chosen one."""

    name: str
    label: str
    words: tuple[str, ...]
    chosen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a page asks its server with."""

    choices: tuple[Choice, ...]
    #: The name that the server gave to the picture.
    picture: str
    #: Why the page shows less than was asked for.
    error: str = ""


def explored_model(plan: Plan) -> ExploredModel:
    """One model on the first image of a plan, without stages.

    Raises:
        ErfscopeError: the image is a ready tensor.
    """
    feed = plan.feed.of(plan.question.wrt)
    picture = feed.pixels(0)
    if picture is None:
        raise ErfscopeError("an explorer shows the image under the maps; give an image file or an array, not a tensor")
    conditions, wrt = pending_result(plan, 0), plan.question.wrt
    label = " · ".join(filter(None, (conditions.label, input_name(wrt))))
    return ExploredModel(
        conditions=replace(conditions, label=label, input=replace(conditions.input, text=feed.text)),
        picture=picture,
        size=plan.trfs[0].reference_px,
        draws=_draws(plan),
    )


def _draws(plan: Plan) -> str:
    """What each map is averaged over; "" for a convention without random signs."""
    draws = plan.question.draws
    if not plan.question.convention.random:
        return ""
    return "all channels" if draws == "all" else f"{draws} random draw{'s' * (draws != 1)} per unit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """Units of every stage of one model or two, to be pointed at on a page."""

    models: tuple[ExploredModel, ...]
    #: The colours of a map from nothing to the strongest, uint8 (256, 3).
    colours: NDArray[np.uint8]
    #: None for a page that holds all that it shows.
    live: Live | None = None

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
            live=self.live,
            on_image=all(is_input(result.wrt) for result in conditions),
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
            return f"{self!r} after pip install '.[explore]' in a checkout of erfscope"
        return ExplorerWidget(page=self.to_html())

    def _repr_mimebundle_(self, **_: object) -> Any:
        """What Jupyter shows: the widget of :meth:`_display_`, and text beside it."""
        shown = self._display_()
        if isinstance(shown, str):
            return {"text/plain": shown}
        data, metadata = shown._repr_mimebundle_()
        return {**data, "text/plain": repr(self)}, metadata

    def _document(self) -> dict[str, Any]:
        """What the script reads."""
        return {
            "models": [_model(model) for model in self.models],
            "live": self.live is not None,
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
        *([] if result.wrt == IMAGE else [f"with respect to {result.wrt}"]),
        f"convention {words.convention_text(result)}",
        *([model.draws] if model.draws else ()),
        # Only the file's name: the page may be published.
        Path(result.input.text).name if result.input.text_kind == "file" else result.input.text,
    ]


def _model(model: ExploredModel) -> dict[str, Any]:
    buffer = io.BytesIO()
    grey = np.rint(model.picture.mean(axis=-1)).astype(np.uint8)
    Image.fromarray(grey).save(buffer, format="JPEG", quality=85)
    return {
        "label": model.conditions.label,
        "size": model.size,
        "px": "px" if is_input(model.conditions.wrt) else "cells",
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
        "units": [unit_document(unit, stage.block) for unit in stage.units],
        "centers": stage.centers_px,
    }


def unit_document(unit: ExploredUnit, block: int) -> dict[str, Any]:
    """One unit as the script reads it."""
    return {
        "index": unit.index,
        "at": unit.center_px,
        "trf": unit.trf_px,
        "field": unit.field_px,
        # The first block of its map, and how many there are, (rows, cols).
        "first": [first // block for first, _ in unit.field_px],
        "blocks": unit.levels.shape,
        "levels": _base64(unit.levels.tobytes()),
        "numbers": [unit.measures.get(name) for name in MEASURED],
        "radii": [round(radius, 2) for radius in unit.radii_px],
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
