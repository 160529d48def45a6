"""A live explorer: units of any layer on any picture, each computed when it is asked for."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs

from torch.overrides import TorchFunctionMode

from erfscope import CONVENTIONS
from erfscope.apps.explore.page import Choice, ExploredModel, Explorer, Live, explored_model, unit_document
from erfscope.apps.explore.stages import Stage, explored_unit, pointed_at, stage_of
from erfscope.core import (
    IMAGE,
    ErfscopeError,
    Images,
    OpenModel,
    Request,
    UnitMaps,
    open_images,
    projective_fields,
    unit_maps,
)


class BadRequest(ErfscopeError):
    """A request that no page of erfscope makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The parameters of a request, each with what holds where it is left out."""

    #: The number of a model.
    model: int = 0
    #: Layers whose units are asked about.
    stages: Sequence[str] = ()
    #: An index along each axis.
    unit: Sequence[int] = ()
    #: First and last cell of the input along each axis.
    box: Sequence[int] = ()
    #: The layer that is shown beside the others, and the reference, of each model.
    layers: Sequence[str] = ()
    references: Sequence[str] = ()
    convention: str | None = None
    #: The name that the server gave to a picture; "" for the first one.
    picture: str = ""
    #: The file of a picture that is sent.
    name: str = ""


#: Parameters of every page, and those of answers that hold whole numbers, with commas between them: so many, and more
#: for each axis of the input.
OF_PAGES = ("layer", "wrt", "convention", "picture")
NUMBERS = {"model": (1, 0), "unit": (0, 1), "box": (0, 2)}
#: Layers of one request, at most.
MOST_LAYERS = 1000


def read_request(query: str, models: int, *needed: str, rank: int = 2) -> PageRequest:
    """Read what a page of so many models asks for.

    Args:
        query: The query of the address.
        models: How many models there are.
        needed: Names of parameters that must be there, beside those of every page.
        rank: How many axes the input has.

    Raises:
        BadRequest: a parameter is missing, repeated or of another form.
    """
    given = parse_qs(query, keep_blank_values=True)
    most = {"layer": models, "wrt": models, "stage": MOST_LAYERS if "box" in needed else 1}
    for name in (*OF_PAGES, *needed):
        values, limit = given.setdefault(name, []), most.get(name, 1)
        if len(values) > limit:
            raise BadRequest(f"{name} is given {len(values)} times; give it {limit} times at most")
        is_blank = "" in values and name in ("convention", *needed)
        if is_blank or (name in needed and not values):
            raise BadRequest(f"the request has no {name}, or one without a value; give it with a value")
    counts = {name: count + each * rank for name, (count, each) in NUMBERS.items() if name in needed}
    numbers = {name: _whole_numbers(name, given[name][0], count) for name, count in counts.items()}
    (model,), box = numbers.get("model", (0,)), numbers.get("box", ())
    if model >= models:
        raise BadRequest(f"there is no model {model}; the page has {models}, counted from 0")
    if any(first > last for first, last in zip(box[::2], box[1::2], strict=True)):
        raise BadRequest(f"the box {','.join(map(str, box))} ends before it begins; write top,bottom,left,right")
    return PageRequest(
        model=model,
        stages=given.get("stage", ()),
        unit=numbers.get("unit", ()),
        box=box,
        layers=given["layer"],
        references=given["wrt"],
        convention=next(iter(given["convention"]), None),
        picture=next(iter(given["picture"]), ""),
        name=next(iter(given.get("name", ())), ""),
    )


def _whole_numbers(name: str, text: str, count: int) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text) or text.count(",") != count - 1:
        form = ",".join("0" * count)
        raise BadRequest(f"{name} is {text[:40]!r}; write {count} whole number{'s' * (count > 1)}, such as {form}")
    return tuple(map(int, text.split(",")))


Answer = TypeVar("Answer")
#: Blocks along a side of a plane of a map, and of a line, at most.
BLOCKS, LINE_BLOCKS = 512, 8192
#: Pictures that are held, the newest ones.
PICTURES = 20
#: Random draws of the signs of a box's pixels.
BOX_DRAWS = 8


class Overtaken(ErfscopeError):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """One model that is ready to be asked."""

    model: OpenModel
    request: Request
    #: Layers that are always shown.
    layers: Sequence[str]
    #: The picture that is shown first.
    images: Images


class LiveExplorer:
    """The answers of a live explorer, as its page reads them; for one thread.

    Args:
        models: One model or two, which are lent for each answer, and handed back as found.
    """

    def __init__(self, models: Sequence[LiveModel]) -> None:
        self._models = models
        self._pictures = {"": [live.images for live in models]}

    @property
    def models(self) -> int:
        """How many models there are."""
        return len(self._models)

    @property
    def rank(self) -> int:
        """How many axes their inputs have."""
        return len(self._models[0].model.adapter.preprocess.size)

    def run(self, stop: threading.Event, answer: Callable[..., Answer], *arguments: Any) -> Answer:
        """Compute one answer, which ends at the model's next operation after ``stop`` is set.

        Raises:
            Overtaken: it was stopped.
        """
        with contextlib.ExitStack() as stack:
            for live in self._models:
                stack.enter_context(live.model)
            stack.enter_context(_Stoppable(stop))
            return answer(*arguments)

    def page(self, request: PageRequest) -> str:
        """The page: geometry of all layers that are asked for, and no units.

        Raises:
            ErfscopeError: a model cannot be explored at all.
        """
        try:
            return self._explorer(request).to_html()
        except ErfscopeError as error:
            if request == PageRequest():
                raise
            explorer = self._accepted(request)
            assert explorer.live is not None
            return replace(explorer, live=replace(explorer.live, error=str(error))).to_html()

    def _accepted(self, request: PageRequest) -> Explorer:
        """The page with each choice that is possible together with those before it."""
        references = [str(live.request.settings.wrt) for live in self._models]
        kept = PageRequest(layers=[""] * self.models, references=references)
        explorer = self._explorer(kept)
        choices: list[tuple[str, int | None, Any]] = [("picture", None, request.picture)]
        choices += [("convention", None, request.convention)]
        choices += [("layers", number, word) for number, word in enumerate(request.layers)]
        choices += [("references", number, word) for number, word in enumerate(request.references)]
        for name, number, word in choices:
            value: Any = word if number is None else [*getattr(kept, name)]
            if number is not None:
                value[number] = word
            with contextlib.suppress(ErfscopeError):
                tried = replace(kept, **{name: value})
                explorer, kept = self._explorer(tried), tried
        return explorer

    def unit(self, request: PageRequest) -> dict[str, Any]:
        """One unit, which is measured as :func:`erfscope.analyze` does it.

        Raises:
            ErfscopeError: unknown layer, unit or convention.
            MeasurementError: the model fails, or the unit has no gradient.
        """
        result = self._maps(request, request.model, request.stages[0]).result(request.unit)
        if result.map is None or result.trf is None or result.unit is None:
            raise ErfscopeError(result.error or "the unit has no gradient on this picture")
        trf, index = result.trf, result.unit.index
        found = explored_unit(index, trf, trf.clipped_box_px, result.map, block=_block(trf.reference_px))
        return unit_document(found)

    def field(self, request: PageRequest) -> dict[str, Any]:
        """How strongly the cells of a box, its first and last one along each axis, move the units of some layers.

        Raises:
            ErfscopeError: unknown layer, or a box that is not on the input.
            MeasurementError: the model fails, or has an operation without a forward derivative.
        """
        layers, box = request.stages, [(a, b + 1) for a, b in zip(request.box[::2], request.box[1::2], strict=True)]
        maps, live = self._maps(request, request.model, layers[0]), self._models[request.model]
        image = maps.images.batch([0])
        space = image.shape[2:]
        if len(box) != len(space) or any(stop > side for (_, stop), side in zip(box, space, strict=True)):
            names = {1: "samples", 2: "rows and columns"}.get(len(space), "planes, rows and columns")
            raise ErfscopeError(f"the input has {'x'.join(map(str, space))} {names}; point at a box inside of it")
        seed = live.request.settings.seed
        fields = projective_fields(live.model, image, tuple(box), layers, draws=BOX_DRAWS, seed=seed)
        return {"stages": [base64.b64encode(fields[layer].astype("<f4").tobytes()).decode() for layer in layers]}

    def add_picture(self, data: bytes, name: str) -> dict[str, Any]:
        """Hold another picture, and name it.

        Raises:
            ErfscopeError: the file cannot be read, or holds no image.
        """
        pictures = []
        for live in self._models:
            file = io.BytesIO(data)
            file.name = name
            pictures.append(open_images(replace(live.request, images=file, synthetic=None), live.model))
            pictures[-1].pixels(0)  # what cannot be read is refused here
        key = secrets.token_urlsafe(6)
        self._pictures[key] = pictures
        for old in [*self._pictures][1:-PICTURES]:
            del self._pictures[old]
        return {"picture": key}

    def _reference(self, request: PageRequest, number: int) -> str:
        """What the units of one model are differentiated by."""
        return [*request.references, *[live.request.settings.wrt for live in self._models]][number]

    def _maps(self, request: PageRequest, number: int, layer: str) -> UnitMaps:
        """All units of one layer of one model, on the picture and under the convention that are asked for."""
        live = self._models[number]
        if request.picture not in self._pictures:
            raise ErfscopeError("this picture is not held any more; drop it again")
        convention = request.convention or live.request.settings.convention
        site = pointed_at(live.model.site(layer, self._reference(request, number)), live.model)
        images = self._pictures[request.picture][number]
        return unit_maps(live.model, site, images, replace(live.request, conventions=(convention,)))

    def _explorer(self, request: PageRequest) -> Explorer:
        chosen = [*request.layers, *[""] * len(self._models)]
        models, choices = [], []
        for number, live in enumerate(self._models):
            models.append(self._explored(request, number, chosen[number]))
            rank = len(live.model.adapter.preprocess.size)
            known = tuple(seen.name for seen in live.model.recording.layers if len(seen.shape) == rank + 2)
            of, wrt = f" ({live.model.label})" if len(self._models) > 1 else "", self._reference(request, number)
            choices += [
                Choice(name="layer", label=f"Layer{of}", words=("", *known), chosen=chosen[number]),
                Choice(name="wrt", label=f"With respect to{of}", words=(IMAGE, *known), chosen=wrt),
            ]
        asked = request.convention or self._models[0].request.settings.convention
        convention = Choice(name="convention", label="Convention", words=tuple(CONVENTIONS), chosen=str(asked))
        page = Live(choices=(convention, *choices), picture=request.picture)
        return Explorer(models=tuple(models), live=page)

    def _explored(self, request: PageRequest, number: int, chosen: str) -> ExploredModel:
        """A model with the geometry of its layers, in the order of execution, and of the chosen one."""
        live, wrt = self._models[number], self._reference(request, number)
        names = dict.fromkeys([*live.layers, chosen] if chosen else live.layers)
        layers, refused = [], []
        for layer in sorted(names, key=lambda name: live.model.layer(name).order):
            try:
                layers.append(self._maps(request, number, layer))
            except ErfscopeError as error:
                if wrt == IMAGE or layer == chosen:
                    raise
                refused.append(error)  # a layer before the reference
        if not layers:
            raise refused[-1]
        return replace(explored_model(layers[-1]), stages=tuple(map(_stage, layers)))


class _Stoppable(TorchFunctionMode):
    """End a computation at its next operation once nobody waits for it."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._stop.is_set():
            raise Overtaken("nobody waits for this answer any more")
        return function(*args, **(kwargs or {}))


def _stage(maps: UnitMaps) -> Stage:
    """The geometry of a layer whose units are all there to be asked for."""
    return stage_of(maps, _block(maps.trf.reference_px))


def _block(reference: Sequence[int]) -> int:
    """Side of the blocks of a map."""
    return -(-max(reference) // (LINE_BLOCKS if len(reference) == 1 else BLOCKS))
