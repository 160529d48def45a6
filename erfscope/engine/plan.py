"""The plan of a run: what is asked of a model, checked, with the units and their receptive fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from erfscope.attribution.convention import CONVENTIONS, Convention, convention_of
from erfscope.attribution.gradient import Draws
from erfscope.engine.model import LoadedModel
from erfscope.engine.state import Plan
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.names import INPUT
from erfscope.geometry.unit import CENTRE, GRID_LIMIT, is_every_unit, resolve_units
from erfscope.options.settings import Settings, by_removal
from erfscope.parallel import current
from erfscope.stimuli.feed import Feed

#: Methods that run changed copies of one image in one batch.
COPYING = ("integrated_gradients", "smoothgrad", "occlusion")

#: Units of a layer that are measured at most.
MOST_UNITS = GRID_LIMIT**2


def plan_run(model: LoadedModel, feed: Feed, settings: Settings, layer: str) -> Plan:
    """Check what is asked, and plan the run.

    Raises:
        ErfscopeError: unknown layer, unit, convention or method, or settings that do not go together.
        MeasurementError: the layer has no spatial map, or what was asked for needs the model itself to be run.
    """
    if feed.n < 1:
        raise ErfscopeError("there is no image to measure on")
    convention = convention_of(settings.convention)
    _check_settings(model, settings, convention)
    _, count, *space = model.layer(layer).shape
    if is_every_unit(settings.unit):
        _check_every_unit(space, layer)
    plain = _why_plain(model, settings, layer)
    _check_passes(model, settings, layer, plain)
    centre = model.recording.default_unit(layer, settings.wrt)
    if settings.channels is not None and settings.channels[-1] >= count:
        raise ErfscopeError(
            f"there is no channel {settings.channels[-1]} in {layer}; it has {count}, from 0 to {count - 1}"
        )
    word = CENTRE if is_every_unit(settings.unit) else settings.unit
    units = [replace(unit, channels=settings.channels) for unit in resolve_units(word, space, centre, layer=layer)]
    draws: Draws = 1 if by_removal(settings) else settings.draws or max(1, math.ceil(8 / feed.n))
    return Plan(
        model=model,
        feed=feed,
        settings=settings,
        convention=convention,
        layer=layer,
        plain=plain,
        units=units,
        trfs=[model.trf(layer, unit.index, settings.wrt) for unit in units],
        draws=draws if convention.random else 1,
        process_group=current(),
    )


def _check_every_unit(space: Sequence[int], layer: str) -> None:
    """Refuse what every unit of a layer cannot be measured under.

    Raises:
        ErfscopeError: there are too many units, or several ranks share the run.
    """
    if current().size > 1:
        raise ErfscopeError(
            f"unit all is measured by one process, not by {current().size} ranks; start one, or name units"
        )
    count = math.prod(space)
    if count > MOST_UNITS:
        text = f"unit all asks for the {count} units of {layer}, and at most {MOST_UNITS} are measured at once"
        raise ErfscopeError(f"{text}; name a deeper layer or a smaller --input-size, or take --unit grid:N")


def _check_settings(model: LoadedModel, settings: Settings, convention: Convention) -> None:
    """Refuse settings that do not go together, and a model without numbers."""
    if settings.amp_dtype is not None and settings.method != "gradient":
        raise ErfscopeError("amp-dtype is for the method gradient only; Captum's methods run in the model's own dtype")
    parameters = dict(model.adapter.module.named_parameters())
    if empty := [name for name, parameter in parameters.items() if parameter.is_meta]:
        raise ErfscopeError(
            f"{model.label} has no numbers: {len(empty)} of its {len(parameters)} parameters are on the meta device,"
            f" {empty[0]!r} first; load them, or build it outside torch.device('meta'); only erfscope.layers and"
            " theoretical need none"
        )
    if settings.shard is not None and by_removal(settings):
        raise ErfscopeError(
            "a map of removed nodes stands beside the gradient's map of all images, and cannot be measured in shards"
        )
    if settings.shard is not None and CONVENTIONS.get(convention.name) != convention:
        raise ErfscopeError(
            f"shards of the convention {convention.name!r} could not be put together: it is none of erfscope's own"
        )


def _check_passes(model: LoadedModel, settings: Settings, layer: str, plain: str) -> None:
    """Refuse a layer or a reference that the forward passes do not give, and copies of an image that see each other."""
    reader = "--verify compares with it" * settings.verify
    for name in (layer, settings.wrt):
        _check_calls(model, name, plain or reader)
    hooked = plain or reader or ("--trust changes it" if settings.trust else "")
    if hooked and model.recording.is_bare_stage(layer, settings.wrt):
        raise MeasurementError(
            f"the reference {settings.wrt!r} of {model.label} is a stage that is no module's output, which only the"
            f" recorded operations show; here the model itself is run: {hooked}"
        )
    if settings.method in COPYING and (mixing := model.recording.batch_mixing(layer)):
        raise MeasurementError(
            f"{settings.method} runs several copies of an image as one batch, which {mixing} may mix; use --method"
            " gradient"
        )


def _check_calls(model: LoadedModel, name: str, plain: str) -> None:
    """Refuse a module that runs several times, of which one call is meant, and one call where the model is run."""
    if (calls := model.recording.calls(name)) > 1:
        module, side = name.removesuffix(INPUT), INPUT * name.endswith(INPUT)
        raise MeasurementError(
            f"{name!r} of {model.label} runs {calls} times per forward pass, so that no one tensor is meant; choose a"
            f" layer around it, or one call: {module}@0{side} to {module}@{calls - 1}{side}"
        )
    if plain and model.recording.is_call(name):
        raise MeasurementError(
            f"{name!r} of {model.label} is one call of a module, which only the recorded operations tell apart; here"
            f" the model itself is run: {plain}"
        )


def _why_plain(model: LoadedModel, settings: Settings, layer: str) -> str:
    """Why the model itself is run, and not its graph; "" where the graph is."""
    if settings.method != "gradient":
        return "other methods than the gradient run the model itself"
    if settings.amp_dtype is not None:
        return "autocast was asked for"
    return "plain was asked for" if settings.plain else model.why_plain(layer)
