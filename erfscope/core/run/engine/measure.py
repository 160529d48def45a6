"""From a model and images to results: the one loop over images."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from erfscope.core.answer.comparability import Use, place_of, short, unlike
from erfscope.core.answer.result import Result
from erfscope.core.images.feed import Images, Prefetcher
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.batch import Need, accumulate, device_and_dtype, estimate, first_readable, plan_batches
from erfscope.core.run.engine.looks import look, places_of_looks
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.outcome import build_result, pending_result, unusual_values
from erfscope.core.run.engine.plan import NO_CALLBACKS, Callbacks, Plan, RunReport, Source, Sums, map_of, plan_run
from erfscope.core.run.engine.running_sums import RunningSums
from erfscope.core.run.engine.shared_run import SharedRun, groups, may_share
from erfscope.core.run.parallel import RankGone
from erfscope.core.run.parallel.process_group import all_reduce_sums
from erfscope.core.system.precision import float32_precision
from erfscope.core.system.restore import one_thread
from erfscope.core.values.errors import ErfscopeError, MeasurementError


@dataclass(frozen=True, slots=True)
class Addition:
    """What is computed of a run's results beside their maps; see :mod:`erfscope.core.run.additions`."""

    #: The field of a result that holds it, without which a finished earlier one is measured again; "" for a finding.
    field: str
    #: Whether the settings ask for it.
    is_wanted: Callable[[Settings], bool]
    #: The results, one per unit, with it.
    compute: Callable[[Plan, Sums, list[Result], Callbacks], list[Result]]


def refuse_others(earlier: Sequence[Result], labels: Sequence[str]) -> None:
    """Refuse to go on with results of which some belong to a model that is not asked for now, since they would be lost.

    Args:
        earlier: Earlier results.
        labels: What the models asked for are called. A model with inserted blocks is called after its host.

    Raises:
        ErfscopeError: names such a result.
    """
    known, hosts = {*labels}, tuple(f"{label} + " for label in labels)
    others = [r.label for r in earlier if r.label not in known and not r.label.startswith(hosts)]
    if others:
        asked = ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "")
        raise ErfscopeError(
            f"what was measured before has results of {others[0]}, which is not among what is asked for now ({asked})"
            " and would be lost; name it too, or measure into another folder"
        )


def resume_run(plan: Plan, sums: Sums, earlier: Sequence[Result]) -> list[Result] | None:
    """Let a run start with what was measured before.

    Args:
        plan: What is measured.
        sums: Nothing was seen yet.
        earlier: Results of before, of this model or others.

    Returns:
        The results, where all units of the run are finished; None where images are left, in which case the run has the
        sums of those that were seen.

    Raises:
        ErfscopeError: what was measured before was measured under other settings.
    """
    if not earlier:
        return None
    found = [_same(pending_result(plan, number), earlier) for number in range(len(plan.question.units))]
    kept = [result for result in found if result is not None]
    if len(kept) < len(found):
        return None
    parts = [result.part for result in kept if result.part is not None and result.part.stopped]
    if not parts:
        return kept
    if len({part.seen for part in parts}) > 1 or len(parts) < len(kept) or parts[0].wanted != len(plan.indices):
        raise ErfscopeError(
            f"the earlier results of {plan.model.label} do not belong together; measure it again into another folder"
        )
    sums.seen = parts[0].seen
    for number, (part, result) in enumerate(zip(parts, kept, strict=True)):
        sums.running[number].next_image = plan.indices[sums.seen - 1] + 1
        sums.averages[number].looks = part.average.looks
        # One rank has what was summed up before; the others start with nothing.
        if plan.process_group.rank == 0:
            sums.running[number] = RunningSums(part.average.copy(), sums.running[number].next_image)
            sums.unreadable = list(part.unreadable)
            if part.ratio is not None:
                sums.ratios[number] = part.ratio
        sums.started -= result.seconds if number == 0 else 0
    return None


def has_lost_arrays(result: Result) -> bool:
    """Whether the file with its map or its sums has gone, so that it must be measured again."""
    codes = {finding.code for finding in result.findings}
    return "map_missing" in codes or (result.part is None and bool(codes & {"stopped", "shard"}))


def _same(wanted: Result, earlier: Sequence[Result]) -> Result | None:
    """The earlier result of the same unit; None where there is none."""
    place = place_of(wanted)
    # Its label alone tells it from most: to read all conditions of every result takes long where there are many.
    found = next((result for result in earlier if result.label == wanted.label and place_of(result) == place), None)
    if found is None or has_lost_arrays(found):
        return None
    if differing := unlike(Use.RESUME, found, wanted):
        texts = [f"{name} ({short(then)} then, {short(now)} now)" for name, then, now in differing[:3]]
        raise ErfscopeError(
            f"{wanted.label} cannot go on where it was stopped: they differ in {', '.join(texts)}; measure it again"
            " into another folder"
        )
    return found


class Questions:
    """All that is asked of one model. Some are measured by the passes of another one; their sums wait for their turn.

    Args:
        settings: Of each measurement; they name its layer.
    """

    def __init__(self, settings: Iterable[Settings]) -> None:
        self._settings = [*settings]
        #: Plans that may go through together; None before the first is measured.
        self._groups: list[list[Plan]] | None = None
        #: What was summed up for later measurements.
        self.summed: dict[Plan, Sums] = {}

    def summed_of(self, layer: str | None) -> list[Plan]:
        """The plans of a layer that have their sums."""
        return [plan for plan in self.summed if plan.settings.layer == layer]

    def beside(self, plan: Plan) -> list[Plan]:
        """The plans that may go through together with one; a plan that fails does so when its turn comes."""
        if self._groups is None:
            others = list[Plan]()
            for settings in self._settings if may_share(plan) else ():
                if settings != plan.settings:
                    with contextlib.suppress(ErfscopeError):
                        other = plan_run(plan.model, plan.feed, settings, settings.layer or "")
                        others += [other] if other.cropped_gmacs else []
            self._groups = groups([plan, *others])
        group = next((each for each in self._groups if any(own.settings == plan.settings for own in each)), [])
        return [each for each in group if each.settings != plan.settings]

    def give_up(self) -> None:
        """Let each be measured alone from now on."""
        self._groups = []


def measure_units(
    model: OpenModel,
    feed: Images,
    settings: Settings,
    *,
    callbacks: Callbacks = NO_CALLBACKS,
    earlier: Sequence[Result] = (),
    additions: Sequence[Addition] = (),
    questions: Questions | None = None,
) -> list[Result]:
    """Measure the units of one layer on every input of ``feed``.

    Args:
        model: The model, already on the device and in the dtype asked for.
        feed: The inputs.
        settings: Layer (the model's default one if None), units, convention, method and all other options.
        callbacks: What is called meanwhile.
        earlier: Results of the same settings: those that are finished are not measured again, and those that were
            stopped are added to.
        additions: What is computed of the results beside their maps, once every image was seen.
        questions: All that is asked of the model, of which some may be measured now, where that takes less.

    Returns:
        One result per unit, in the order asked for; none where the run was stopped before the first image.

    Raises:
        ErfscopeError: unknown layer, unit, convention or method, or an unreadable image without ``keep_going``.
        MeasurementError: the model fails, or the layer has no spatial map.
    """
    if questions is not None:
        for plan in questions.summed_of(settings.layer):
            if plan.settings == settings:
                return _results(plan, questions.summed.pop(plan), callbacks, additions)
    plan = plan_run(model, feed, settings, settings.layer or model.adapter.default_layer)
    # Results that lack what is asked for are measured again.
    fields = [addition.field for addition in additions if addition.field]
    earlier = [r for r in earlier if r.part or not r.ok or all(getattr(r, field) is not None for field in fields)]
    sums = plan.sums()
    if (finished := resume_run(plan, sums, earlier)) is not None:
        return finished
    begun = {plan: sums} if questions is None else _begun(plan, sums, questions.beside(plan), earlier)
    group = [*begun]
    run, found = SharedRun(*group), dict[Plan, Sums]()
    sums, total = run.sums([*begun.values()]), len(run.indices)
    try:
        with _threads_of(run):
            with run.process_group.agreeing() as widths:
                needs = _with_batches(run, sums)
                widths.own = sums.planned
            layers = ", ".join(dict.fromkeys(each.site.layer for each in group))
            callbacks.tell(f"{model.label} · {layers}: {estimate(run, needs, sums.batch_size)}")
            callbacks.progress(sums.seen, total)
            rounds = list(_rounds(run, sums.seen, min(widths.all) * run.process_group.size))
            shares = [index for first, last in rounds for index in _share(run, first, last)]
            with prefetched(run, shares, keep=sums.planned) as read, float32_precision(tf32=settings.tf32):
                for first, last in rounds:
                    with run.process_group.agreeing() as stops:
                        accumulate(run, sums, _share(run, first, last), read)
                        stops.own = callbacks.stop()
                    sums.seen = last
                    callbacks.progress(sums.seen, total)
                    sums.stopped = any(stops.all) and sums.seen < total
                    if sums.stopped or _is_enough(run, sums):
                        break
            found = dict(zip(group, run.sums_of(_reduced(run, sums)), strict=True))
    except RankGone:
        raise
    except MeasurementError:
        if len(group) == 1:
            raise
    if questions is not None and not _are_their_own(found):
        # What failed may be another layer's, or the memory of all.
        questions.give_up()
        del run, sums, begun, found
        return measure_units(model, feed, settings, callbacks=callbacks, earlier=earlier, additions=additions)
    own = found.pop(plan)
    if questions is not None:
        questions.summed |= found
    return _results(plan, own, callbacks, additions)


def _begun(plan: Plan, sums: Sums, others: Iterable[Plan], earlier: Sequence[Result]) -> dict[Plan, Sums]:
    """The plans that go through with one now, itself among them, with sums that have seen the same images."""
    begun = {plan: sums}
    for each in others:
        own = each.sums()
        with contextlib.suppress(ErfscopeError):
            if resume_run(each, own, earlier) is None and own.seen == sums.seen:
                begun[each] = own
    return {each: begun[each] for group in groups([*begun]) if plan in group for each in group}


def _are_their_own(found: Mapping[Plan, Sums]) -> bool:
    """Whether sums are there, and those of several plans are what each has alone: a gradient of zero times an infinite
    derivative, of cells that only another one needs, is not a number."""
    return len(found) == 1 or (bool(found) and not any(a.nan_images for sums in found.values() for a in sums.averages))


def _threads_of(run: SharedRun) -> contextlib.AbstractContextManager[None]:
    """One thread where a pass takes no longer than threads that wait for each other."""
    return one_thread() if run.is_small else contextlib.nullcontext()


def _with_batches(run: SharedRun, sums: Sums) -> tuple[Need, ...]:
    """Plan the batches, which may fail on one rank alone; return the memory they take."""
    batches = plan_batches(run)
    sums.planned, sums.batch_size = batches.planned, batches.batch_size
    return batches.needs


def _is_enough(run: SharedRun, sums: Sums) -> bool:
    """Whether the error that was asked for is reached, where it is time to look at it."""
    target = run.settings.until_se
    if target is None or sums.seen not in places_of_looks(len(run.indices)):
        return False
    whole, sums.is_precise_enough = _reduced(run, sums), True
    for number, (own, average) in enumerate(zip(sums.averages, whole.averages, strict=True)):
        if not average.groups:  # every gradient so far is zero
            sums.is_precise_enough = False
            continue
        r50 = look(map_of(run.plans[0], whole, number), average)
        own.looks, own.spread = average.looks, average.spread
        sums.is_precise_enough &= r50.se is not None and r50.se <= target * float(r50)
    return sums.is_precise_enough


def _results(plan: Plan, sums: Sums, callbacks: Callbacks, additions: Sequence[Addition]) -> list[Result]:
    """One result per unit of the images seen so far; none before the first."""
    if sums.seen == 0:
        return []
    some_readable = len(sums.unreadable) < sums.seen
    report = RunReport(
        weights_findings=tuple(plan.model.weights_findings()),
        image_findings=tuple(unusual_values(plan)),
        observed=tuple(plan.model.adapter.examine(lambda: _first(plan))) if some_readable else (),
    )
    results = [build_result(plan, sums, report, number) for number in range(len(plan.question.units))]
    if additions and not sums.stopped:
        with _threads_of(SharedRun(plan)):
            for addition in additions:
                results = addition.compute(plan, sums, results, callbacks)
    return [replace(result, seconds=time.perf_counter() - sums.started) for result in results]


def _first(plan: Plan) -> Tensor:
    """The first input that can be read, where the model lies."""
    _, x = first_readable(plan, range(plan.feed.n))
    device, dtype = device_and_dtype(plan)
    return x.to(device=device, dtype=dtype)


def _share(run: SharedRun, first: int, last: int) -> Sequence[int]:
    """This rank's images of a round."""
    return run.process_group.share(run.indices[first:last])


def _rounds(run: SharedRun, seen: int, width: int) -> Iterator[tuple[int, int]]:
    """Places in the run's images, from one to the next: ``width`` at a time, and no further than the next check of the
    error."""
    total, at = len(run.indices), seen
    looks = places_of_looks(total) if run.settings.until_se is not None else []
    while at < total:
        end = min(at + width, total, next((each for each in looks if each > at), total))
        yield at, end
        at = end


def _reduced(run: SharedRun, sums: Sums) -> Sums:
    """The sums of all ranks together."""
    process_group = run.process_group
    if process_group.size == 1:
        return sums
    gathered = process_group.all_gather(lambda: (sums.unreadable, sums.ratios, sums.planned, sums.batch_size))
    ratios: dict[int, float] = {}
    for _, found, *_ in reversed(gathered):
        ratios |= found
    return replace(
        sums,
        running=[
            RunningSums(all_reduce_sums(average, process_group, device_and_dtype(run.plans[0])[0]))
            for average in sums.averages
        ],
        unreadable=sorted(index for found, *_ in gathered for index in found),
        ratios=ratios,
        planned=max(planned for _, _, planned, _ in gathered),
        batch_size=min(batch_size for *_, batch_size in gathered),
    )


@contextlib.contextmanager
def prefetched(run: SharedRun, indices: Sequence[int], *, keep: int) -> Iterator[Source]:
    """Yield what gives these images, read ahead in this order where the settings ask for workers.

    Args:
        run: What is measured.
        indices: Ascending.
        keep: How many images are kept ready.
    """
    workers = min(run.settings.workers, len(indices))
    if workers < 1:
        yield run.read
        return
    with contextlib.closing(Prefetcher(run.feed, indices, run.box, workers=workers, keep=keep)) as ahead:
        yield ahead
