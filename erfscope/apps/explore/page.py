"""The page of an explorer: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from erfscope.apps.explore.planes import InputPicture, Plane, picture_of, three
from erfscope.apps.explore.stages import ENCLOSED, ExploredUnit, Stage, measured_of
from erfscope.core import IMAGE, MEASURES, Result, UnitMaps, is_input
from erfscope.show import GLOSS as MEANINGS
from erfscope.show import convention_text, drawn, page, plot, printable, random_weights, weights_condition, write

#: What a page calls the input, by its kind, and its cells where that is not their unit.
PICTURES = {"image": "picture", "volume": "volume", "clip": "clip", "sequence": "signal"}
CELLS = {"px": "pixel", "cells": "cell of the inner map"}
#: What the measures of time and depth are, in a few words.
GLOSS = {
    **{
        f"extent50_{axis}": f"length along {axis} that holds half of the ERF"
        for axis in ("row", "col", "depth", "time")
    },
    "extent90_time": "length along time that holds nine tenths",
    "lookback90": "how far back nine tenths of it reach",
    "past_share": "share of the ERF before the unit's step",
    "present_share": "share in the unit's step",
    "future_share": "share after the unit's step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploredModel:
    """One model on one input."""

    #: Model, weights, convention and input, as for the first unit.
    conditions: Result
    #: The input, in grey.
    picture: InputPicture
    #: Size of what units are differentiated by: the input, or the map of an inner layer.
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


def explored_model(maps: UnitMaps) -> ExploredModel:
    """One model on the first of its images, without stages."""
    images, conditions, wrt = maps.images, maps.conditions, maps.site.wrt
    name = wrt.partition(":")[2] if is_input(wrt) else ""
    label = " · ".join(filter(None, (conditions.label, name)))
    return ExploredModel(
        conditions=replace(conditions, label=label, input=replace(conditions.input, text=images.text)),
        picture=picture_of(images, images.batch([0]).ndim - 2),
        size=maps.trf.reference_px,
        draws=_draws(maps),
    )


def _draws(maps: UnitMaps) -> str:
    """What each map is averaged over; "" for a convention without random signs."""
    draws = maps.conditions.input.n_draws
    if not maps.is_random:
        return ""
    return "all channels" if draws == "all" else f"{draws} random draw{'s' * (draws != 1)} per unit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """Units of every stage of one model or two, to be pointed at on a page."""

    models: tuple[ExploredModel, ...]
    #: None for a page that holds all that it shows.
    live: Live | None = None

    def to_html(self) -> str:
        """The page: one file with its pictures, numbers, style and script."""
        folder = files("erfscope.apps.explore") / "templates"
        template, style, script = (
            (folder / name).read_text(encoding="utf-8") for name in ("explorer.html.j2", "explorer.css", "explorer.js")
        )
        conditions = [model.conditions for model in self.models]
        kind = conditions[0].axes.noun
        document = json.dumps(self._document(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        text: str = page.template_of(template).render(
            labels=[result.label for result in conditions],
            facts=[_facts(model) for model in self.models],
            shouts=list(dict.fromkeys(filter(None, map(random_weights, conditions)))),
            document=Markup(document),
            live=self.live,
            kind=kind,
            picture=PICTURES[kind],
            cell=_cell(conditions[0]),
            # Of volumes and clips a page holds planes of the maps, which do not say who sees a place.
            who_sees=all(is_input(result.wrt) and (self.live or len(result.axes.names) < 3) for result in conditions),
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
        write(path, self.to_html(), force=force)

    def __repr__(self) -> str:
        stages = [f"{model.conditions.label} ({len(model.stages)} layers)" for model in self.models]
        return f"Explorer of {' and '.join(stages)}: save('explorer.html') writes its page, and notebooks show it"

    def _display_(self) -> Any:
        """What marimo shows: the page, or text where anywidget is not installed."""
        try:
            from erfscope.apps.explore.widget import ExplorerWidget
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
            "frames": drawn.FRAMES,
            "cell": _cell(self.models[0].conditions),
            # Of a map from nothing to the strongest, (256, 3).
            "colours": _base64(plot.colour_map(signed=False)(np.arange(256), bytes=True)[:, :3].tobytes()),
            "shares": drawn.SHARES,
            "brightness": drawn.BRIGHTNESS,
            "enclosed": ENCLOSED,
            "gloss": {
                name: GLOSS.get(name) or MEANINGS[name]
                for model in self.models
                for name in measured_of(model.conditions.axes)
            },
        }


def _cell(result: Result) -> str:
    """What a page calls a cell of the reference."""
    return CELLS.get(result.axes.cell, result.axes.cell.removesuffix("s"))


def _facts(model: ExploredModel) -> list[str]:
    """The conditions of a model, each in a few words."""
    result = model.conditions
    size = "x".join(map(str, result.input.size))
    return [
        weights_condition(result).alone,
        f"input {size} {result.input_axes.cell}",
        *result.input_axes.recorded.values(),
        *([] if result.wrt == IMAGE else [f"with respect to {result.wrt}"]),
        f"convention {convention_text(result)}",
        *([model.draws] if model.draws else ()),
        # Only the file's name: the page may be published.
        Path(result.input.text).name if result.input.text_kind == "file" else result.input.text,
    ]


def _model(model: ExploredModel) -> dict[str, Any]:
    axes, picture = model.conditions.axes, model.picture
    measures = {name: MEASURES[name] for name in measured_of(axes)}
    return {
        "label": model.conditions.label,
        "kind": axes.noun,
        "noun": PICTURES[axes.noun],
        # Of three axes, as the script counts them, whatever there are.
        "size": three(model.size, 1),
        "axes": three(axes.names, ""),
        "spacing": three(axes.spacing, 1.0),
        "units": three(axes.units, ""),
        "unit": axes.unit,
        "cell": axes.cell,
        # The unit of each measure; "%" for a share.
        "measures": {
            name: "%" if each.kind == "share" else axes.unit_of(each.unit, each.axis) for name, each in measures.items()
        },
        "picture": {"url": picture.url, "shape": picture.shape, "columns": picture.columns},
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
        "units": [unit_document(unit) for unit in stage.units],
        "centers": three(stage.centers_px, (0.0,)),
    }


def unit_document(unit: ExploredUnit) -> dict[str, Any]:
    """One unit as the script reads it."""
    curve = {} if unit.curve is None else {"curve": _base64(unit.curve.tobytes())}
    return {
        "index": unit.index,
        "at": unit.center_px,
        "cell": unit.cell and three(unit.cell, 0),
        "trf": unit.trf_px,
        "planes": [_plane(plane) for plane in unit.planes],
        "numbers": [*unit.measures.values()],
        "radii": [round(radius, 2) for radius in unit.radii_px],
        **curve,
    }


def _plane(plane: Plane) -> dict[str, Any]:
    return {
        "axes": plane.axes,
        "cell": plane.cell,
        "first": plane.first,
        "blocks": plane.levels.shape,
        "share": round(plane.share, 4),
        "levels": _base64(plane.levels.tobytes()),
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
