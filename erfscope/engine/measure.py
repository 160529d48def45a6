"""From a model and pictures to results: the one loop over images."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.stats import spearmanr
from torch import Tensor

from erfscope.attribution.convention import CONVENTIONS, Convention, convention_of
from erfscope.attribution.gradient import Draws
from erfscope.cone.cone import Cone
from erfscope.engine.autocast import amp_errors
from erfscope.engine.batch import accumulate
from erfscope.engine.batch_size import device_and_dtype, estimate, plan_batches
from erfscope.engine.model import AnotherPath, LoadedModel
from erfscope.engine.probe import probe, watched
from erfscope.engine.resume import resume_run
from erfscope.engine.run import Run, build_result, map_of
from erfscope.engine.verify import compare_on_pictures, readable, verify_on_first
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.unit import Unit, resolve
from erfscope.hosting.random_states import same_random_numbers
from erfscope.maps.accumulator import MapAccumulator
from erfscope.maps.erf_map import ErfMap
from erfscope.maps.jackknife import GROUPS, MIN_GROUPS
from erfscope.measures import with_errors
from erfscope.options.settings import Settings, by_removal
from erfscope.parallel import current
from erfscope.parallel.reduce import all_reduce_sums
from erfscope.results.result import Result
from erfscope.stimuli.feed import Feed
from erfscope.stimuli.prefetch import Prefetcher

#: Called with (images done, images in all).
Progress = Callable[[int, int], None]
#: Called after every batch; true where the run is to end with what it has.
Stop = Callable[[], bool]
#: Called with a line for whoever wants to know more.
Tell = Callable[[str], None]

#: Methods that run changed copies of one image in one batch.
COPYING = ("integrated_gradients", "smoothgrad", "occlusion")


def measure(
    subject: LoadedModel,
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
    try:
        with same_random_numbers():
            run = _start(subject, feed, settings, layer or settings.layer or subject.adapter.default_layer)
        if (finished := resume_run(run, earlier)) is not None:
            return finished
        compare_on_pictures(run)
        width = min(run.team.agree(partial(_ready, run))) * run.team.size
        if tell is not None:
            tell(f"{subject.label} · {run.layer}: {estimate(run)}")
        with prefetched(run, [index for first, last in _rounds(run, width) for index in _share(run, first, last)]):
            for first, last in _rounds(run, width):
                with run.team.agreeing() as stops, watched(run):
                    accumulate(run, _share(run, first, last))
                    stops.own = stop is not None and stop()
                run.seen = last
                if progress is not None:
                    progress(run.seen, len(run.indices))
                run.stopped = any(stops.all) and run.seen < len(run.indices)
                if run.stopped or _is_enough(run):
                    break
        return _results(_together(run), layer)
    except AnotherPath as error:
        again = replace(subject, misleads=str(error))
    return measure(again, feed, settings, layer=layer, progress=progress, stop=stop, tell=tell, earlier=earlier)


def _ready(run: Run) -> int:
    """Plan the batches of a run, which may fail on one rank alone; return how many pictures go together."""
    # A model that draws random numbers draws in the measurement what it would have drawn without all this.
    with same_random_numbers():
        if run.settings.verify_cone:
            verify_on_first(run)
        plan_batches(run)
        probe(run)
    return run.planned


def _is_enough(run: Run) -> bool:
    """Whether the standard error that was asked for is reached, where it is time to look at it."""
    if run.settings.until_se is None or run.seen not in _looks(run.seen):
        return False
    run.sufficed = _settled(_together(run), run.settings.until_se)
    return run.sufficed


def _results(run: Run, layer: str | None) -> list[Result]:
    """One result per unit of what was seen; none where that is nothing."""
    if run.seen == 0:
        return []
    if run.settings.amp_dtype is not None:
        run.amp_errors = amp_errors(run, run.indices[: run.seen])
    some_readable = len(run.unreadable) < run.seen
    run.weights_said = tuple(run.subject.weights_said((lambda: _first(run)) if some_readable else None))
    if some_readable:
        run.observed = run.subject.adapter.examine(lambda: _first(run))
    results = [build_result(run, number) for number in range(len(run.units))]
    return _beside_gradient(results, run, layer) if by_removal(run.settings) and not run.stopped else results


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


def _start(subject: LoadedModel, feed: Feed, settings: Settings, layer: str) -> Run:
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
    averages = [MapAccumulator(convention, feed.n, trf.reference_px, trf) for trf in trfs]
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


def _cones(subject: LoadedModel, layer: str, units: Sequence[Unit], settings: Settings) -> list[Cone] | None:
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
    return next(readable(run, range(run.feed.n))).to(device_and_dtype(run)[1])


def _share(run: Run, first: int, last: int) -> Sequence[int]:
    """This rank's pictures of a round."""
    return run.indices[first:last][run.team.rank :: run.team.size]


def _rounds(run: Run, width: int) -> Iterator[tuple[int, int]]:
    """Places in the run's pictures, from one to the next: ``width`` at a time, and no further than where the error is looked at."""
    total, at = len(run.indices), run.seen
    looks = iter(_looks(total) if run.settings.until_se is not None else ())
    look = 0
    while at < total:
        while look <= at:
            look = next(looks, total + 1)
        end = min(at + width, total, look)
        yield at, end
        at = end


def _looks(total: int) -> list[int]:
    """After how many pictures the error is looked at, whatever the batch size and the number of ranks: 10, 20, ..., then a quarter more."""
    found, at = [], GROUPS
    while at <= total:
        found.append(at)
        at += max(1, at // (4 * GROUPS)) * GROUPS
    return found


def _settled(run: Run, target: float) -> bool:
    """Whether the relative standard error of every unit's r50 is below the target."""
    for number, average in enumerate(run.averages):
        if average.groups < MIN_GROUPS:
            return False
        r50 = with_errors(map_of(run, number), average.leave_one_out(), ["r50"], groups=average.groups)["r50"]
        if r50.se is None or not isinstance(r50.value, float) or r50.se > target * r50.value:
            return False
    return True


def _together(run: Run) -> Run:
    """The run with what all ranks have seen."""
    team = run.team
    if team.size == 1:
        return run
    said = team.agree(lambda: (run.unreadable, run.ratios, run.planned, run.at_once, run.probed))
    ratios: dict[int, float] = {}
    for _, found, *_ in reversed(said):
        ratios |= found
    return replace(
        run,
        averages=[all_reduce_sums(average, team, device_and_dtype(run)[0]) for average in run.averages],
        unreadable=sorted(index for found, *_ in said for index in found),
        ratios=ratios,
        planned=max(planned for _, _, planned, *_ in said),
        at_once=min(at_once for _, _, _, at_once, _ in said),
        probed=next((probed for *_, probed in said if probed), ()),
    )


@contextlib.contextmanager
def prefetched(run: Run, indices: Sequence[int]) -> Iterator[None]:
    """Have these pictures read ahead, in this order, where the settings ask for workers.

    Args:
        run: Its ``source`` is replaced inside.
        indices: Ascending.
    """
    workers = min(run.settings.workers, len(indices))
    if workers < 1:
        yield
        return
    direct = run.source
    with contextlib.closing(
        Prefetcher(run.feed, indices, run.box, workers=workers, keep=run.planned, pin=device_and_dtype(run)[0].type == "cuda")
    ) as ahead:
        run.source = ahead
        try:
            yield
        finally:
            run.source = direct
