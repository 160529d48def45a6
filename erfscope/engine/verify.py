"""Whether what is computed of a model agrees with the whole pass on the pictures that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from erfscope.engine.batch_size import check_comparison, device_and_dtype
from erfscope.engine.cone_check import TOLERANCE, ComparisonError, differences
from erfscope.engine.run import Run
from erfscope.errors import ErfscopeError


def verify_on_first(run: Run) -> None:
    """Compare every cone with the whole pass on the first image that can be read, and crop nothing if one of them does not agree."""
    if run.cones is None or all(cone.is_whole for cone in run.cones):
        return
    check_comparison(run)
    try:
        off = next(differences(run.subject.adapter, run.cones, readable(run, range(run.feed.n))), None)
    except ComparisonError as error:
        _crop_nothing(run, f"the cone cannot be compared with the whole pass, since {error}")
        return
    if off is not None:
        run.difference = max(off, run.difference or 0.0)
        if not off <= TOLERANCE:
            _crop_nothing(run, f"the cone differs from the whole pass by {off:.1e}")


def compare_on_pictures(run: Run) -> None:
    """Compare cones that only a comparison speaks for with the whole pass on every picture, and crop nothing if one does not agree.

    One picture may show what noise does not: a gate that opens where there is something bright and smooth. All ranks decide alike.

    Raises:
        ErfscopeError: a picture cannot be read, and is not to be passed over.
        MeasurementError: there is no memory for it.
    """
    cones = [cone for cone in run.cones or () if cone.shown_by == "comparison"]
    if not cones:
        return

    def found() -> tuple[list[float], str]:
        check_comparison(run)
        try:
            return list(differences(run.subject.adapter, cones, readable(run, run.indices[run.team.rank :: run.team.size]))), ""
        except ComparisonError as error:
            return [], f"the cone cannot be compared with the whole pass, since {error}"

    said = run.team.agree(found)
    offs = [off for each, _ in said for off in each]
    # The noise that the cone was planned with is one more.
    run.checked_on = len(offs) + 1
    run.difference = max(offs, default=0.0)
    against = next((text for _, text in said if text), "")
    if not against and not run.difference <= TOLERANCE:
        count = sum(not off <= TOLERANCE for off in offs)
        against = f"the cone differs from the whole pass by up to {run.difference:.1e} on {count} of {len(offs)} pictures"
    if against:
        _crop_nothing(run, against)


def _crop_nothing(run: Run, reason: str) -> None:
    whole = run.subject.cones(run.layer, run.units, run.settings.wrt, crop=False)
    assert whole is not None
    run.cones = [replace(cone, reason=reason, refuted=True) for cone in whole]


def readable(run: Run, indices: range) -> Iterator[Tensor]:
    """Inputs (1, C_in, *space) where the model lies, without those that cannot be read and may be passed over."""
    for index in indices:
        try:
            x = run.feed.batch([index])
        except ErfscopeError:
            if not run.settings.keep_going:
                raise
            continue
        yield x.to(device_and_dtype(run)[0])
