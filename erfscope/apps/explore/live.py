"""A live explorer: units of any layer on any picture, each computed when it is asked for."""

from __future__ import annotations

import base64
import contextlib
import math
import re
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar
from urllib.parse import parse_qs

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from erfscope.apps.explore.page import Choice, ExploredModel, Explorer, Live, explored_model, unit_document
from erfscope.apps.explore.stages import Stage, explored_unit, plan_layer, stage_of
from erfscope.core.answer.convention import CONVENTIONS, random_signs
from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.images.decode import decode
from erfscope.core.images.feed import Images, PictureImages
from erfscope.core.request.settings import Settings
from erfscope.core.run.attribution.forward import guarded
from erfscope.core.run.attribution.gradient import in_double
from erfscope.core.run.engine.batch import device_and_dtype
from erfscope.core.run.engine.measure import measure_units
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.plan import Plan
from erfscope.core.system.model_errors import first_line, wrap_model_errors
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import Box, inside, sides, size_text


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


def projective_fields(
    model: OpenModel, image: Tensor, box: Box, layers: Sequence[str], *, draws: int = 1, seed: int = 0
) -> dict[str, FloatArray]:
    """How strongly the pixels of a box move each unit of some layers.

    One Jacobian-vector product per input channel gives all units of all layers. The box's pixels have random signs in
    it, of which a single pixel needs none.

    Args:
        model: The model.
        image: What it is given, (1, C_in, *space).
        box: The pixels.
        layers: Names of layers.
        draws: Random draws that are averaged over.
        seed: Seed of the signs.

    Returns:
        Of each layer an array (*space): the root of the sum of the squared derivatives of a unit's channels with
        respect to the box's pixels. For one pixel this is the unit's map in the convention ``jacobian`` with all
        channels, before it is divided by its sum.

    Raises:
        ErfscopeError: an unknown layer, or one without a map.
        MeasurementError: the model fails, or has an operation without a forward derivative.
    """
    known = {name: layout for layer in layers for name, layout in (model.site(layer).hooks or {}).items()}
    count = math.prod(sides(box))
    draws = draws if count > 1 else 1
    squares = dict.fromkeys(layers, torch.zeros((), dtype=torch.float64))
    for draw, channel in product(range(draws), range(image.shape[1])):
        signs = random_signs(count, seed=seed, image=0, draw=draw)
        tangent = torch.zeros_like(image)
        tangent[:, channel][inside(box)] = signs.view(sides(box)).to(image)
        with wrap_model_errors(model.label, model.adapter), _forward_mode(model.label, image.device):
            dual = forward_ad.make_dual(image, tangent)  # type: ignore[no-untyped-call]
            for layer, values in model.adapter.maps(dual, layers, known).items():
                moved = forward_ad.unpack_dual(values).tangent  # type: ignore[no-untyped-call]
                moved = torch.zeros_like(values) if moved is None else moved
                squares[layer] = squares[layer] + in_double(moved[0]).square().sum(0)
    return {layer: (total / draws).sqrt().cpu().numpy() for layer, total in squares.items()}


@contextlib.contextmanager
def _forward_mode(label: str, device: torch.device) -> Iterator[None]:
    """Forward-mode derivatives; attention takes its plain operations, since the fused ones have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), guarded(device), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            # PyTorch's own module of forward derivatives uses what PyTorch has deprecated.
            warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
            with forward_ad.dual_level():
                yield
    except NotImplementedError as error:
        text = f"has an operation without a forward derivative: {first_line(error)}"
        raise MeasurementError(text, model=label) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


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
    settings: Settings
    #: Layers that are always shown.
    layers: Sequence[str]
    #: The picture that is shown first, and what makes the same of another one.
    feed: Images
    feed_of: Callable[[Image.Image], Images]


class LiveExplorer:
    """The answers of a live explorer, as its page reads them; for one thread.

    Args:
        models: One model or two.
        modules: Modules that are lent for each answer, and handed back as found.
        colours: As for :class:`erfscope.apps.explore.page.Explorer`.
    """

    def __init__(self, models: Sequence[LiveModel], modules: Sequence[nn.Module], colours: NDArray[np.uint8]) -> None:
        self._models, self._modules, self._colours = models, modules, colours
        self._pictures = {"": [_held(live.feed) for live in models]}

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
        with restored(*self._modules), torch.inference_mode(False), _Stoppable(stop):
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
        kept = PageRequest(layers=[""] * self.models, references=[str(live.settings.wrt) for live in self._models])
        explorer = self._explorer(kept)
        choices: list[dict[str, Any]] = [{"picture": request.picture}, {"convention": request.convention}]
        for name, words in (("layers", request.layers), ("references", request.references)):
            choices += [{name: (number, word)} for number, word in enumerate(words)]
        for choice in choices:
            ((name, value),) = choice.items()
            if isinstance(value, tuple):
                number, word = value
                value = [*getattr(kept, name)]
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
        live, feed, settings = self._measured(request, request.model)
        unit = ",".join(map(str, request.unit))
        (result,) = measure_units(live.model, feed, replace(settings, unit=unit), layer=request.stages[0])
        if result.map is None or result.trf is None or result.unit is None:
            raise ErfscopeError(result.error or "the unit has no gradient on this picture")
        field = result.trf.clipped_box_px
        kept = result.map.values[tuple(slice(first, last + 1) for first, last in field)]
        space, block = result.unit.map_shape[1:], _block(result.trf.reference_px)
        erf = replace(result.map, values=kept)
        return unit_document(explored_unit(result.unit.index, result.trf, field, erf, block=block, space=space))

    def field(self, request: PageRequest) -> dict[str, Any]:
        """How strongly the cells of a box, its first and last one along each axis, move the units of some layers.

        Raises:
            ErfscopeError: unknown layer, or a box that is not on the input.
            MeasurementError: the model fails, or has an operation without a forward derivative.
        """
        live, feed, settings = self._measured(request, request.model)
        layers, box = request.stages, [(a, b + 1) for a, b in zip(request.box[::2], request.box[1::2], strict=True)]
        device, dtype = device_and_dtype(plan_layer(live.model, feed, settings, layers[0]))
        image = feed.batch([0]).to(device=device, dtype=dtype)
        space = image.shape[2:]
        if len(box) != len(space) or any(stop > side for (_, stop), side in zip(box, space, strict=True)):
            names = {1: "samples", 2: "rows and columns"}.get(len(space), "planes, rows and columns")
            raise ErfscopeError(f"the input has {size_text(space)} {names}; point at a box inside of it")
        fields = projective_fields(live.model, image, tuple(box), layers, draws=BOX_DRAWS, seed=settings.seed)
        return {"stages": [base64.b64encode(fields[layer].astype("<f4").tobytes()).decode() for layer in layers]}

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

    def _measured(self, request: PageRequest, number: int) -> tuple[LiveModel, Images, Settings]:
        live, key = self._models[number], request.picture
        if key not in self._pictures:
            raise ErfscopeError("this picture is not held any more; drop it again")
        settings = live.settings
        wrt = [*request.references, *[settings.wrt] * len(self._models)][number]
        convention = request.convention or settings.convention
        return live, self._pictures[key][number], replace(settings, wrt=wrt, convention=convention)

    def _explorer(self, request: PageRequest) -> Explorer:
        chosen = [*request.layers, *[""] * len(self._models)]
        models, choices = [], []
        for number, layer in enumerate(chosen[: len(self._models)]):
            live, feed, settings = self._measured(request, number)
            models.append(_explored(live, feed, settings, layer))
            rank = len(live.model.adapter.preprocess.size)
            known = tuple(seen.name for seen in live.model.recording.layers if len(seen.shape) == rank + 2)
            of = f" ({live.model.label})" if len(self._models) > 1 else ""
            choices += [
                Choice(name="layer", label=f"Layer{of}", words=("", *known), chosen=layer),
                Choice(name="wrt", label=f"With respect to{of}", words=(IMAGE, *known), chosen=settings.wrt),
            ]
        convention = Choice(
            name="convention", label="Convention", words=tuple(CONVENTIONS), chosen=str(settings.convention)
        )
        page = Live(choices=(convention, *choices), picture=request.picture)
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


def _held(feed: Images, name: str = "") -> Images:
    """A feed of the one picture, which is read once, with the name of its file."""
    if not isinstance(feed, PictureImages):
        return feed
    pixels = feed.stimuli.pixels(0)
    stimuli = replace(feed.stimuli, draw=lambda _: pixels)
    return replace(feed, stimuli=replace(stimuli, source=name, is_one_file=True) if name else stimuli)


def _explored(live: LiveModel, feed: Images, settings: Settings, chosen: str) -> ExploredModel:
    """A model with the geometry of its layers, in the order of execution, and of the chosen one."""
    names = dict.fromkeys([*live.layers, chosen] if chosen else live.layers)
    plans, refused = [], []
    for layer in sorted(names, key=lambda name: live.model.layer(name).order):
        try:
            plans.append(plan_layer(live.model, feed, settings, layer))
        except ErfscopeError as error:
            if settings.wrt == IMAGE or layer == chosen:
                raise
            refused.append(error)  # a layer before the reference
    if not plans:
        raise refused[-1]
    return replace(explored_model(plans[-1]), stages=tuple(map(_stage, plans)))


def _stage(plan: Plan) -> Stage:
    """The geometry of a layer whose units are all there to be asked for."""
    return stage_of(plan, [range(side) for side in plan.site.space], _block(plan.trfs[0].reference_px))


def _block(reference: Sequence[int]) -> int:
    """Side of the blocks of a map."""
    return -(-max(reference) // (LINE_BLOCKS if len(reference) == 1 else BLOCKS))
