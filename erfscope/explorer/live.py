"""A live explorer: units of any layer on any picture, each computed when it is asked for."""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.overrides import TorchFunctionMode

from erfscope.attribution.convention import CONVENTIONS
from erfscope.engine.batch import device_and_dtype
from erfscope.engine.measure import measure
from erfscope.engine.model import LoadedModel
from erfscope.engine.plan import Plan
from erfscope.errors import ErfscopeError
from erfscope.explorer.asked import Asked
from erfscope.explorer.page import Choice, ExploredModel, Explorer, Live, explored_model, unit_document
from erfscope.explorer.projective import projective_fields
from erfscope.explorer.stages import Stage, explored_unit, plan_of_planes, stage_of
from erfscope.geometry.names import IMAGE
from erfscope.options.settings import Settings
from erfscope.restore import restored
from erfscope.stimuli.decode import decode
from erfscope.stimuli.feed import Feed, PictureFeed

Found = TypeVar("Found")
#: Blocks along a side of a map, at most.
BLOCKS = 512
#: Pictures that are held, the newest ones.
PICTURES = 20
#: Random draws of the signs of a box's pixels.
BOX_DRAWS = 8


class Overtaken(ErfscopeError):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """One model that is ready to be asked."""

    model: LoadedModel
    settings: Settings
    #: Layers that are always shown.
    layers: Sequence[str]
    #: The picture that is shown first, and what makes the same of another one.
    feed: Feed
    feed_of: Callable[[Image.Image], Feed]


class LiveExplorer:
    """The answers of a live explorer, as its page reads them; for one thread.

    Args:
        models: One model or two.
        modules: Modules that are lent for each answer, and handed back as found.
        colours: As for :class:`erfscope.explorer.page.Explorer`.
    """

    def __init__(self, models: Sequence[LiveModel], modules: Sequence[nn.Module], colours: NDArray[np.uint8]) -> None:
        self._models, self._modules, self._colours = models, modules, colours
        self._pictures = {"": [_held(live.feed) for live in models]}

    @property
    def models(self) -> int:
        """How many models there are."""
        return len(self._models)

    def run(self, stop: threading.Event, answer: Callable[..., Found], *asked: Any) -> Found:
        """Compute one answer, which ends at the model's next operation after ``stop`` is set.

        Raises:
            Overtaken: it was stopped.
        """
        with restored(*self._modules), torch.inference_mode(False), _Stoppable(stop):
            return answer(*asked)

    def page(self, asked: Asked) -> str:
        """The page: geometry of all layers that are asked for, and no units.

        Raises:
            ErfscopeError: a model cannot be explored at all.
        """
        try:
            return self._explorer(asked).to_html()
        except ErfscopeError as error:
            if asked == Asked():
                raise
            explorer = self._explorer(Asked(picture=asked.picture if asked.picture in self._pictures else ""))
            assert explorer.live is not None
            return replace(explorer, live=replace(explorer.live, error=str(error))).to_html()

    def unit(self, asked: Asked) -> dict[str, Any]:
        """One unit, which is measured as :func:`erfscope.analyze` does it.

        Raises:
            ErfscopeError: unknown layer, unit or convention.
            MeasurementError: the model fails, or the unit has no gradient.
        """
        live, feed, settings = self._asked(asked, asked.model)
        unit = ",".join(map(str, asked.unit))
        (result,) = measure(live.model, feed, replace(settings, unit=unit), layer=asked.stages[0])
        if result.map is None or result.trf is None or result.unit is None:
            raise ErfscopeError(result.error or "the unit has no gradient on this picture")
        field = result.trf.clipped_box_px
        kept = result.map.values[tuple(slice(first, last + 1) for first, last in field)]
        block = _block(result.trf.reference_px)
        explored = explored_unit(result.unit.index, result.trf, field, replace(result.map, values=kept), block)
        return unit_document(explored, block)

    def field(self, asked: Asked) -> dict[str, Any]:
        """How strongly the pixels of a box, its first and last row and column, move the units of some layers.

        Raises:
            ErfscopeError: unknown layer, or a box that is not on the image.
            MeasurementError: the model fails, or has an operation without a forward derivative.
        """
        live, feed, settings = self._asked(asked, asked.model)
        layers, (top, bottom, left, right) = asked.stages, asked.box
        device, dtype = device_and_dtype(plan_of_planes(live.model, feed, settings, layers[0]))
        image = feed.batch([0]).to(device=device, dtype=dtype)
        height, width = image.shape[2:]
        if bottom >= height or right >= width:
            raise ErfscopeError(f"the image has {height} rows and {width} columns; point at a box inside of it")
        box = ((top, bottom + 1), (left, right + 1))
        found = projective_fields(live.model, image, box, layers, draws=BOX_DRAWS, seed=settings.seed)
        return {"stages": [base64.b64encode(found[layer].astype("<f4").tobytes()).decode() for layer in layers]}

    def add_picture(self, data: bytes, name: str) -> dict[str, Any]:
        """Hold another picture, and name it.

        Raises:
            ErfscopeError: the file cannot be read, or holds no image.
        """
        feeds = []
        for live in self._models:
            picture = decode(data, name=name, channels=live.model.adapter.preprocess.channels)
            feeds.append(_held(live.feed_of(picture), name))
        key = secrets.token_urlsafe(6)
        self._pictures[key] = feeds
        for old in [*self._pictures][1:-PICTURES]:
            del self._pictures[old]
        return {"picture": key}

    def _asked(self, asked: Asked, number: int) -> tuple[LiveModel, Feed, Settings]:
        live, key = self._models[number], asked.picture
        if key not in self._pictures:
            raise ErfscopeError("this picture is not held any more; drop it again")
        settings = live.settings
        wrt = [*asked.references, *[settings.wrt] * len(self._models)][number]
        convention = asked.convention or settings.convention
        return live, self._pictures[key][number], replace(settings, wrt=wrt, convention=convention)

    def _explorer(self, asked: Asked) -> Explorer:
        chosen = [*asked.layers, *[""] * len(self._models)]
        models, choices = [], []
        for number, layer in enumerate(chosen[: len(self._models)]):
            live, feed, settings = self._asked(asked, number)
            models.append(_explored(live, feed, settings, layer))
            known = tuple(each.name for each in live.model.recording.layers if len(each.shape) == 4)
            of = f" ({live.model.label})" if len(self._models) > 1 else ""
            choices += [
                Choice(name="layer", label=f"Layer{of}", words=("", *known), chosen=layer),
                Choice(name="wrt", label=f"With respect to{of}", words=(IMAGE, *known), chosen=settings.wrt),
            ]
        convention = Choice(
            name="convention", label="Convention", words=tuple(CONVENTIONS), chosen=str(settings.convention)
        )
        page = Live(choices=(convention, *choices), picture=asked.picture)
        return Explorer(models=tuple(models), colours=self._colours, live=page)


class _Stoppable(TorchFunctionMode):
    """End a computation at its next operation once nobody waits for it."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._stop.is_set():
            raise Overtaken("nobody waits for this answer any more")
        return function(*args, **(kwargs or {}))


def _held(feed: Feed, name: str = "") -> Feed:
    """The same picture, read once, with the name of its file."""
    if not isinstance(feed, PictureFeed):
        return feed
    pixels = feed.stimuli.pixels(0)
    stimuli = replace(feed.stimuli, draw=lambda _: pixels)
    return replace(feed, stimuli=replace(stimuli, source=name, is_one_file=True) if name else stimuli)


def _explored(live: LiveModel, feed: Feed, settings: Settings, chosen: str) -> ExploredModel:
    """A model with the geometry of its layers, in the order of execution, and of the chosen one."""
    names = dict.fromkeys([*live.layers, chosen] if chosen else live.layers)
    plans, refused = [], []
    for layer in sorted(names, key=lambda name: live.model.layer(name).order):
        try:
            plans.append(plan_of_planes(live.model, feed, settings, layer))
        except ErfscopeError as error:
            if settings.wrt == IMAGE or layer == chosen:
                raise
            refused.append(error)  # a layer before the reference
    if not plans:
        raise refused[-1]
    return replace(explored_model(plans[-1]), stages=tuple(map(_stage, plans)))


def _stage(plan: Plan) -> Stage:
    """The geometry of a layer whose units are all there to be asked for."""
    space = plan.model.layer(plan.layer).shape[2:]
    return stage_of(plan, [range(side) for side in space], _block(plan.trfs[0].reference_px))


def _block(reference: Sequence[int]) -> int:
    """Side of the blocks of a map."""
    return -(-max(reference) // BLOCKS)
