"""The loop over pictures: in rounds of a batch per rank, after each of which all ranks agree whether to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from erfscope.batching import estimate, home, plan
from erfscope.conclusion import Run, map_of
from erfscope.loading import loading
from erfscope.measures import with_errors
from erfscope.passes import add
from erfscope.probe import probe, watched
from erfscope.random_states import same_random_numbers
from erfscope.ranks.uniting import united
from erfscope.statistics import GROUPS, MIN_GROUPS

#: Called with (images done, images in all).
Progress = Callable[[int, int], None]
#: Called after every batch; true where the run is to end with what it has.
Stop = Callable[[], bool]
#: Called with a line for whoever wants to know more.
Tell = Callable[[str], None]


def see(
    run: Run, *, prepare: Callable[[], None], progress: Progress | None = None, stop: Stop | None = None, tell: Tell | None = None
) -> Run:
    """Show the pictures to the model: all that are left, or as many as are needed.

    Args:
        run: What is asked, and what was seen before.
        prepare: What must be done first, and may fail on one rank alone.
        progress: Called after every batch.
        stop: Whether somebody has asked to stop.
        tell: Told what it will take, before the first picture.

    Returns:
        The run with the sums of all ranks.

    Raises:
        ErfscopeError: a picture cannot be read.
        MeasurementError: the model fails, or there is no memory, on one of the ranks.
    """
    team = run.team

    def ready() -> int:
        # A model that draws random numbers draws in the measurement what it would have drawn without all this.
        with same_random_numbers():
            prepare()
            plan(run)
            probe(run)
        return run.planned

    width = min(team.agree(ready)) * team.size
    if tell is not None:
        tell(f"{run.subject.label} · {run.layer}: {estimate(run)}")
    with loading(run, [index for first, last in _rounds(run, width) for index in _share(run, first, last)]):
        for first, last in _rounds(run, width):
            stops = team.agree(partial(_added, run, _share(run, first, last), stop))
            run.seen = last
            if progress is not None:
                progress(run.seen, len(run.indices))
            run.stopped = any(stops) and run.seen < len(run.indices)
            if run.stopped:
                break
            if run.settings.until_se is not None and last in _looks(last):
                whole = _together(run)
                run.sufficed = _settled(whole, run.settings.until_se)
                if run.sufficed:
                    break
    return _together(run)


def _share(run: Run, first: int, last: int) -> Sequence[int]:
    """This rank's pictures of a round."""
    return run.indices[first:last][run.team.rank :: run.team.size]


def _added(run: Run, batch: Sequence[int], stop: Stop | None) -> bool:
    with watched(run):
        add(run, batch)
    return stop is not None and stop()


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
        averages=[united(average, team, home(run)[0]) for average in run.averages],
        unreadable=sorted(index for found, *_ in said for index in found),
        ratios=ratios,
        planned=max(planned for _, _, planned, *_ in said),
        at_once=min(at_once for _, _, _, at_once, _ in said),
        probed=next((probed for *_, probed in said if probed), ()),
    )
