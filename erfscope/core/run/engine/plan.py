"""The plan of a run: what is asked of a model, checked, with the units and their receptive fields; and the run's
sums."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from erfscope.core.answer import from_sums
from erfscope.core.answer.convention import CONVENTIONS, Convention, convention_of
from erfscope.core.answer.maps.accumulator import MIN_GROUPS, MapAccumulator
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.graph.run import Crop
from erfscope.core.graph.site import Site
from erfscope.core.images.feed import Images
from erfscope.core.request.settings import Settings, by_removal
from erfscope.core.run.attribution.forward import Draws, ModelForward, Question
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds, may_cancel
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.running_sums import RunningSums
from erfscope.core.run.parallel import SINGLE, ProcessGroup, current
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Preprocess
from erfscope.core.values.names import INPUT, is_input
from erfscope.core.values.shard import Shard, parse
from erfscope.core.values.unit import CENTRE, GRID_LIMIT, Trf, Unit, is_every_unit
from erfscope.core.values.unit_kind import CLASS, by_kind, kind_of, split_kind

#: Index of an image -> (1, C_in, *space), the part of it that is needed, on the CPU.
Source = Callable[[int], Tensor]


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Callbacks of a run; by default they do nothing."""

    #: Called before the first batch and after every one, with (images done, images in all).
    progress: Callable[[int, int], None] = lambda _done, _total: None
    #: Called after every batch; true where the run is to end with what it has.
    stop: Callable[[], bool] = lambda: False
    #: Called before the first image with a line that says how much memory the run will take.
    tell: Callable[[str], None] = lambda _line: None


NO_CALLBACKS = Callbacks()


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The plan of one measurement. Lists have one entry per unit."""

    model: OpenModel
    feed: Images
    settings: Settings
    question: Question
    trfs: list[Trf]
    #: Why the model itself is run, and not its graph; None where the graph is.
    plain_reason: str | None
    #: Who shares the run.
    process_group: ProcessGroup = SINGLE

    @cached_property
    def crops(self) -> list[Crop]:
        """The operations that the units need of one image; none where the model itself is run."""
        return self.crops_of(1, 1)

    def crops_of(self, images: int, most: int) -> list[Crop]:
        """Those of a batch of so many images, of at most ``most``."""
        if self.plain_reason is not None:
            return []
        return self.model.crops(self.site, [unit.index for unit in self.question.units], images=images, most=most)

    @cached_property
    def cropped_gmacs(self) -> list[tuple[float, float]]:
        """Multiply-adds of one image in 10^9, and those of the same operations whole: of each crop, or of the model."""
        return [cropped_giga_multiply_adds(crop) for crop in self.crops or [self.model.whole(self.site)]]

    @cached_property
    def may_cancel(self) -> bool:
        """Whether the readout's gradient may be rounding noise, so that it is compared with one with random signs."""
        return not self.question.convention.random and may_cancel(self.site)

    @cached_property
    def site(self) -> Site:
        """The layer and the reference."""
        return self.question.site

    @cached_property
    def shown(self) -> Preprocess:
        """How the images become the input, with the spacing that their files state."""
        reference = self.site.wrt
        return self.feed.of(reference).preprocess(self.model.adapter.preprocess.of(reference))

    @property
    def model_forward(self) -> ModelForward:
        """The forward pass of the model itself, with autocast where it was asked for."""
        amp_dtype = self.settings.amp_dtype
        dtype = None if amp_dtype is None else getattr(torch, amp_dtype)
        return ModelForward(self.model.adapter, self.question, dtype)

    @property
    def shard(self) -> Shard | None:
        """Which of several equal parts of the images is measured; None for all of them."""
        return None if self.settings.shard is None else parse(self.settings.shard)

    @property
    def indices(self) -> range:
        """The images to measure."""
        return range(self.feed.n) if self.shard is None else self.shard.indices(self.feed.n)

    def sums(self, images: int | None = None) -> Sums:
        """Return empty sums, of so many images instead of all."""
        n = self.feed.n if images is None else images
        averages = [MapAccumulator(self.question.convention, n, trf.reference_px, trf) for trf in self.trfs]
        for average in averages if self.question.place else ():
            average.masses = {}
        return Sums(running=[RunningSums(average) for average in averages])


@dataclass(kw_only=True)
class Sums:
    """The sums of a run so far. Lists have one entry per unit."""

    running: list[RunningSums]
    unreadable: list[int] = field(default_factory=list)
    #: Gradient norm over that of a random-sign draw, per unit.
    ratios: dict[int, float] = field(default_factory=dict)
    #: Images of a batch as planned, and as many as were found to fit into memory.
    planned: int = 1
    batch_size: int = 1
    #: How many of the run's images were seen, by all ranks, from the first one on.
    seen: int = 0
    #: Whether the run was stopped, and whether the error asked for was reached before the last image.
    stopped: bool = False
    is_precise_enough: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def averages(self) -> list[MapAccumulator]:
        """What was summed up so far."""
        return [each.average() for each in self.running]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Observations on a run that its sums do not hold."""

    #: Findings about the weights that were measured.
    weights_findings: tuple[Finding, ...] = ()
    #: Findings about the values of the images.
    image_findings: tuple[Finding, ...] = ()
    #: What a forward pass on the first image showed, in sentences.
    observed: tuple[str, ...] = ()


def map_of(plan: Plan, sums: Sums, number: int) -> ErfMap:
    """Return the map of one unit so far."""
    size = plan.model.adapter.preprocess.of(plan.site.wrt).size
    scale, axes = plan.question.convention.scale, axes_of(plan, number)
    return from_sums.map_of(sums.averages[number], plan.trfs[number], scale, size, axes)


def axes_of(plan: Plan, number: int) -> Axes:
    """Return the axes of the reference of one unit."""
    own = plan.shown.axes
    return own if is_input(plan.site.wrt) else own.inner(plan.trfs[number].reference_px, plan.shown.size)


#: Methods that run changed copies of one image in one batch.
COPYING = ("integrated_gradients", "smoothgrad", "occlusion")

#: Units of a layer that are measured at most.
MOST_UNITS = GRID_LIMIT**2


def plan_run(model: OpenModel, feed: Images, settings: Settings, layer: str) -> Plan:
    """Check what is asked, and plan the run.

    Raises:
        ErfscopeError: unknown layer, unit, convention or method, or settings that do not go together.
        MeasurementError: the layer has no spatial map, or what was asked for needs the model itself to be run.
    """
    if feed.n < 1:
        raise ErfscopeError("there is no image to measure on")
    convention = convention_of(settings.convention)
    _check_settings(model, settings, convention)
    kind, _ = kind_of(settings.unit)
    site = model.site(by_kind(layer, kind), settings.wrt)
    units = _asked_units(model, settings, site)
    plain_reason = _plain_reason(settings, site)
    _check_passes(model, settings, site, plain_reason)
    # The sign of a single score changes nothing.
    is_single = kind == CLASS and site.shape[1] == 1
    draws: Draws = 1 if by_removal(settings) or is_single else settings.draws or _default_draws(feed.n)
    question = Question(
        site=site,
        place=model.adapter.preprocess.place(settings.wrt),
        units=units,
        convention=convention,
        seed=settings.seed,
        draws=draws if convention.random else 1,
    )
    return Plan(
        model=model,
        feed=feed,
        settings=settings,
        question=question,
        plain_reason=plain_reason,
        trfs=[site.trf(unit) for unit in units],
        process_group=current(),
    )


def _asked_units(model: OpenModel, settings: Settings, site: Site) -> list[Unit]:
    """The units of a layer that the settings ask for, with their channels."""
    count = site.shape[1]
    if settings.channels is not None and settings.channels[-1] >= count:
        raise ErfscopeError(
            f"there is no channel {settings.channels[-1]} in {split_kind(site.layer)[0]}; it has {count}, from 0 to"
            f" {count - 1}"
        )
    if is_every_unit(settings.unit):
        _check_every_unit(site)
    word = CENTRE if is_every_unit(settings.unit) else settings.unit
    units = site.units(word)
    return units if settings.channels is None else [replace(unit, channels=settings.channels) for unit in units]


def _default_draws(images: int) -> int:
    """Eight over all images, and one for each at least; where these are too few to have errors, as many for each as
    have."""
    return max(1 if images >= MIN_GROUPS else MIN_GROUPS, math.ceil(8 / images))


def _check_every_unit(site: Site) -> None:
    """Refuse what every unit of a layer cannot be measured under.

    Raises:
        ErfscopeError: there are too many units, or several ranks share the run.
    """
    if current().size > 1:
        raise ErfscopeError(
            f"unit all is measured by one process, not by {current().size} ranks; start one, or name units"
        )
    count = math.prod(site.space)
    if count > MOST_UNITS:
        text = f"unit all asks for the {count} units of {site.layer}, and at most {MOST_UNITS} are measured at once"
        raise ErfscopeError(f"{text}; name a deeper layer or a smaller --input-size, or take --unit grid:N")


def _check_settings(model: OpenModel, settings: Settings, convention: Convention) -> None:
    """Refuse settings that do not go together, and a model without numbers."""
    if settings.amp_dtype is not None and settings.method != "gradient":
        raise ErfscopeError("amp-dtype is for the method gradient only; Captum's methods run in the model's own dtype")
    if settings.method == "occlusion" and model.adapter.preprocess.parts:
        raise ErfscopeError(
            f"occlusion would cover a patch of all inputs of {model.label} at once; use --method gradient"
        )
    parameters = dict(model.adapter.module.named_parameters())
    if empty := [name for name, parameter in parameters.items() if parameter.is_meta]:
        raise ErfscopeError(
            f"{model.label} has no numbers: {len(empty)} of its {len(parameters)} parameters are on the meta device,"
            f" {empty[0]!r} first; load them, or build it outside torch.device('meta'); only erfscope.layers and"
            " theoretical need none"
        )
    if settings.verify and (dtype := model.adapter.dtype) not in (torch.float32, torch.float64):
        raise ErfscopeError(
            f"verify compares with float64, and {model.label} is in {str(dtype).removeprefix('torch.')}: call .float()"
            " on it, or leave --verify out"
        )
    if settings.shard is not None and by_removal(settings):
        raise ErfscopeError(
            "a map of removed nodes stands beside the gradient's map of all images, and cannot be measured in shards"
        )
    if settings.shard is not None and CONVENTIONS.get(convention.name) != convention:
        raise ErfscopeError(
            f"shards of the convention {convention.name!r} could not be put together: it is none of erfscope's own"
        )


def _check_passes(model: OpenModel, settings: Settings, site: Site, plain_reason: str | None) -> None:
    """Refuse a layer or a reference that the forward passes do not give, and copies of an image that see each other."""
    reason = plain_reason or ("--verify compares with it" if settings.verify else None)
    for name in (site.layer, *([] if is_input(settings.wrt) else [settings.wrt])):
        _check_calls(model, name, reason)
    hooked = reason or ("--trust changes it" if settings.trust else None)
    if hooked and site.is_from_bare_stage:
        raise MeasurementError(
            f"the reference {settings.wrt!r} of {model.label} is a stage that is no module's output, which only the"
            f" recorded operations show; here the model itself is run: {hooked}"
        )
    if settings.method in COPYING and (mixing := site.batch_mixing):
        raise MeasurementError(
            f"{settings.method} runs several copies of an image as one batch, which {mixing} may mix; use --method"
            " gradient"
        )


def _check_calls(model: OpenModel, name: str, plain_reason: str | None) -> None:
    """Refuse a module that runs several times, of which one call is meant, and one call where the model is run."""
    layer = split_kind(name)[0]
    if (calls := model.recording.calls(name)) > 1:
        module, side = layer.removesuffix(INPUT), INPUT * layer.endswith(INPUT)
        raise MeasurementError(
            f"{module + side!r} of {model.label} runs {calls} times per forward pass, so that no one tensor is meant;"
            f" choose a layer around it, or one call: {module}@0{side} to {module}@{calls - 1}{side}"
        )
    if plain_reason and model.recording.is_call(name):
        raise MeasurementError(
            f"{layer!r} of {model.label} is one call of a module, which only the recorded operations tell apart; here"
            f" the model itself is run: {plain_reason}"
        )


def _plain_reason(settings: Settings, site: Site) -> str | None:
    """Why the model itself is run, and not its graph; None where the graph is."""
    if settings.method != "gradient":
        return "other methods than the gradient run the model itself"
    if settings.amp_dtype is not None:
        return "autocast was asked for"
    return "plain was asked for" if settings.plain else site.plain_reason
