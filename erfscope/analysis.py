"""From a model and pictures to results: the one loop over images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import spearmanr
from torch import Tensor

from erfscope.amp import amp_errors
from erfscope.attribution.gradient import Draws
from erfscope.attribution.removal import by_removal
from erfscope.averaging import Averaging
from erfscope.batching import home
from erfscope.conclusion import Run, conclude
from erfscope.cone.cone import Cone
from erfscope.convention import CONVENTIONS, Convention, convention_of
from erfscope.erfmap import ErfMap
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.feed import Feed
from erfscope.random_states import same_random_numbers
from erfscope.ranks import current
from erfscope.result import Result
from erfscope.resuming import taken_up
from erfscope.rounds import Progress, Stop, Tell, see
from erfscope.settings import Settings
from erfscope.subject import AnotherPath, Subject
from erfscope.unit import Unit, resolve
from erfscope.verifying import compare_on_pictures, readable, verify_on_first

#: Methods that run changed copies of one image in one batch.
COPYING = ("integrated_gradients", "smoothgrad", "occlusion")


def measure(
    subject: Subject,
    feed: Feed,
    settings: Settings,
    *,
    layer: str | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    tell: Tell | None = None,
    earlier: Sequence[Result] = (),
) -> list[Result]:
    """Measure the units of one layer on every input of ``feed``.

    Args:
        subject: The model, already on the device and in the dtype asked for.
        feed: The inputs.
        settings: Everything else.
        layer: Layer name; the settings' or the model's default layer if None.
        progress: Called after every batch.
        stop: Called after every batch; true ends the run with what it has.
        tell: Told how much memory it will take, before the first picture.
        earlier: Results of the same settings: those that are finished are not measured again, and those that were stopped are added to.

    Returns:
        One result per unit, in the order asked for; none where the run was stopped before the first picture.

    Raises:
        ErfscopeError: unknown layer, unit, convention or method, or an unreadable picture without ``keep_going``.
        MeasurementError: the model fails, or the layer has no spatial map.
    """
    asked = {"layer": layer, "progress": progress, "stop": stop, "tell": tell, "earlier": earlier}
    try:
        return _measure(subject, feed, settings, **asked)  # type: ignore[arg-type]
    except AnotherPath as error:
        return _measure(replace(subject, misleads=str(error)), feed, settings, **asked)  # type: ignore[arg-type]


def _measure(
    subject: Subject,
    feed: Feed,
    settings: Settings,
    *,
    layer: str | None,
    progress: Progress | None,
    stop: Stop | None,
    tell: Tell | None,
    earlier: Sequence[Result],
) -> list[Result]:
    with same_random_numbers():
        run = _start(subject, feed, settings, layer or settings.layer or subject.adapter.default_layer)
    if (finished := taken_up(run, earlier)) is not None:
        return finished
    compare_on_pictures(run)
    run = see(run, prepare=lambda: _prepare(run), progress=progress, stop=stop, tell=tell)
    if run.seen == 0:
        return []
    if settings.amp_dtype is not None:
        run.amp_errors = amp_errors(run, run.indices[: run.seen])
    some_readable = len(run.unreadable) < run.seen
    run.weights_said = tuple(subject.weights_said((lambda: _first(run)) if some_readable else None))
    if some_readable:
        run.observed = subject.adapter.examine(lambda: _first(run))
    results = [conclude(run, number) for number in range(len(run.units))]
    return _beside_gradient(results, run, layer) if by_removal(settings) and not run.stopped else results


def _prepare(run: Run) -> None:
    if run.settings.verify_cone:
        verify_on_first(run)


def _beside_gradient(results: list[Result], run: Run, layer: str | None) -> list[Result]:
    """Maps of removed nodes with their rank correlation with the gradient's maps of the same pictures."""
    gradients = measure(run.subject, run.feed, replace(run.settings, method="gradient", until_se=None), layer=layer)
    pairs = zip(results, gradients, strict=True)
    return [replace(result, rank_correlation=_rank_correlation(result.map, gradient.map)) for result, gradient in pairs]


def _rank_correlation(ours: ErfMap | None, theirs: ErfMap | None) -> float | None:
    """Spearman's, over the nodes; None where one of the maps is missing or the same everywhere."""
    if ours is None or theirs is None or np.ptp(ours.magnitude) == 0 or np.ptp(theirs.magnitude) == 0:
        return None
    return float(spearmanr(ours.magnitude.ravel(), theirs.magnitude.ravel()).statistic)


def _start(subject: Subject, feed: Feed, settings: Settings, layer: str) -> Run:
    if feed.n < 1:
        raise ErfscopeError("there is no picture to measure on")
    if settings.amp_dtype is not None and settings.method != "gradient":
        raise ErfscopeError("amp-dtype is for the method gradient only; Captum's methods run in the model's own dtype")
    if any(parameter.is_meta for parameter in subject.adapter.module.parameters()):
        raise ErfscopeError(
            f"{subject.label} is on the meta device and has no numbers: build it outside torch.device('meta'); "
            "only erfscope.layers and theoretical need none"
        )
    convention = convention_of(settings.convention)
    if settings.shard is not None:
        _check_shard(settings, convention)
    space = subject.layer(layer).shape[2:]
    if settings.method in COPYING and (mixing := subject.recording.batch_mixing(layer)):
        text = f"{settings.method} runs several copies of an image as one batch, and these may see each other through {mixing}"
        raise MeasurementError(f"{text}; use --method gradient")
    centre = subject.recording.default_unit(layer, settings.wrt)
    units = resolve(settings.unit, space, centre, layer=layer)
    trfs = [subject.trf(layer, unit.index, settings.wrt) for unit in units]
    averages = [Averaging(convention, feed.n, trf.reference_px, trf) for trf in trfs]
    draws: Draws = 1 if by_removal(settings) else settings.draws or max(1, math.ceil(8 / feed.n))
    return Run(
        subject=subject,
        feed=feed,
        settings=settings,
        convention=convention,
        layer=layer,
        cones=_cones(subject, layer, units, settings),
        units=units,
        trfs=trfs,
        averages=averages,
        draws=draws if convention.random else 1,
        team=current(),
    )


def _cones(subject: Subject, layer: str, units: Sequence[Unit], settings: Settings) -> list[Cone] | None:
    if settings.method != "gradient":
        return None
    return subject.cones(layer, units, settings.wrt, crop=settings.cone != "off", compare=settings.cone == "compare")


def _check_shard(settings: Settings, convention: Convention) -> None:
    """Refuse what cannot be put together from shards."""
    if by_removal(settings):
        raise ErfscopeError("a map of removed nodes stands beside the gradient's map of all pictures, and cannot be measured in shards")
    if CONVENTIONS.get(convention.name) != convention:
        raise ErfscopeError(f"shards of the convention {convention.name!r} could not be put together: it is none of erfscope's own")


def _first(run: Run) -> Tensor:
    """The first input that can be read, where the model lies."""
    return next(readable(run, range(run.feed.n))).to(home(run)[1])
