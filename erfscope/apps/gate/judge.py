"""Verdicts on single measures: which differences are within the tolerance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from erfscope.apps.gate.baseline import BaselineMeasure
from erfscope.apps.gate.noise import DifferenceNoise, Word, decide, needed, noise_of
from erfscope.apps.gate.tolerance import Tolerance, pointless, unit_of
from erfscope.core import MEASURES
from erfscope.show import number, plus, rounded, with_error

#: Verdicts as people read them, where that is not the word that code and JSON have.
SHOWN = {"cannot tell": "inconclusive", "new": "baseline created"}
#: Samples that are proposed where there are too few for an error bar: what is measured unless asked otherwise.
SAMPLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureVerdict:
    """The verdict on one measure."""

    name: str
    word: Word
    obtained: BaselineMeasure | None
    expected: BaselineMeasure | None
    tolerance: Tolerance
    #: The tolerance in the measure's unit; None where nothing is expected.
    limit: float | None = None
    #: Obtained minus expected; None where one of them is missing.
    difference: float | None = None
    #: The jackknife's standard error of the difference, which the decision widens by Student's quantile: over the same
    #: images in pairs where that is possible; 0 for a measure that never has one.
    se: float | None = None
    #: How many samples would make it a verdict; None where it is one, or no number would.
    needed: int | None = None
    #: Why it is not a pass; "" where it is.
    reason: str = ""
    #: A clear change in the unguarded direction, or that nothing is guarded; "" where there is none.
    notice: str = ""

    @property
    def brief(self) -> str:
        """The move in a few words: ``r50 62.0 -> 52.0 px (-5%)``."""
        values = [number(None if each is None else each.value) for each in (self.expected, self.obtained)]
        unit = unit_of(self.name, self.obtained, self.expected)
        return f"{self.name} {' -> '.join(values)}{unit} ({self.tolerance})"

    @property
    def is_open(self) -> bool:
        """Whether it is no verdict."""
        return self.word == "cannot tell"


def judge(
    name: str,
    tolerance: Tolerance,
    obtained: BaselineMeasure | None,
    expected: BaselineMeasure | None,
    *,
    measures: int = 1,
    looks: int = 1,
    rounding: float | None = None,
) -> MeasureVerdict:
    """Compare one measure with what is expected of it, by :func:`erfscope.apps.gate.noise.decide`.

    Args:
        name: The measure.
        tolerance: How far it may move.
        obtained: What was found; None if it was not measured.
        expected: What the baseline has; None if it has none.
        measures: How many measures are guarded with it.
        looks: How often the check may be decided, over more and more images.
        rounding: The share of the expected value that rounding may move where nothing else does, since the weights and
            the images are the same; None where they are not, and images are noise.
    """
    blank = MeasureVerdict(name=name, word="cannot tell", obtained=obtained, expected=expected, tolerance=tolerance)
    if expected is None or obtained is None:
        return replace(blank, reason=f"{name} {'is not in the baseline' if expected is None else 'was not measured'}")
    if expected.value is None or obtained.value is None:
        where = "this map" if obtained.value is None else "the map of the baseline"
        return replace(blank, reason=f"{name} does not exist for {where}")
    if (text := pointless(name, tolerance, expected)) and not tolerance.relative:
        return replace(blank, reason=text)
    # Both are over as many images, whose bias cancels.
    ours, theirs = obtained.as_measured(name), expected.as_measured(name)
    difference, _ = ours.minus(theirs)
    se = ours.jackknife_se(theirs) if MEASURES[name].has_se else 0.0
    assert difference is not None
    if se is None:
        text = (
            f"{name} has no error bar: fewer than four groups of {obtained.over}, or one without which it does not"
            " exist"
        )
        return replace(blank, reason=f"{text}; {SAMPLES} samples would have one", needed=SAMPLES)
    limit, wider = tolerance.limit(expected.value), MEASURES[name].wider
    groups = min(len(obtained.leave_one_out), len(expected.leave_one_out))
    tails: Literal[1, 2] = 2 if tolerance.side == "both" or wider is None else 1
    noise = noise_of(se, groups, tails=tails, measures=measures, looks=looks)
    if rounding is not None:
        se, noise = 0.0, DifferenceNoise(of_any=rounded_off(name, expected.value, rounding), of_one=0.0)
    word = decide(tolerance.move(difference, wider), limit, noise)
    found = replace(blank, word=word, limit=limit, difference=difference, se=se)
    if word == "pass":
        return replace(found, notice=text or _improvement_notice(found, noise))
    enough = needed(obtained.n, noise, limit) if word == "cannot tell" else None
    return _explained(replace(found, needed=enough), noise)


def rounded_off(name: str, expected: float, share: float) -> float:
    """How far rounding may move a measure: a share of its value, of one that is a share itself at least so much of a
    quarter, since the map moves by no more."""
    return share * max(abs(expected), 0.25 if MEASURES[name].kind == "share" and share else 0.0)


def has_moved(found: MeasureVerdict, rounding: float) -> bool:
    """Whether a measure has moved by more than rounding does; one that moves in steps, or is fitted, may."""
    measure, expected = MEASURES[found.name], found.expected
    if found.difference is None or expected is None or expected.value is None or measure.has_steps or measure.is_fit:
        return False
    return abs(found.difference) > rounded_off(found.name, expected.value, rounding)


def _improvement_notice(found: MeasureVerdict, noise: DifferenceNoise) -> str:
    """The notice of a clear move the other way."""
    wider, tolerance = MEASURES[found.name].wider, found.tolerance
    assert found.difference is not None
    assert found.limit is not None
    enough = max(found.limit, noise.of_any)
    if tolerance.side == "both" or wider is None or -tolerance.move(found.difference, wider) <= enough:
        return ""
    return f"the ERF became {'wider' if tolerance.side == 'narrower' else 'narrower'}: {found.name} {_moved(found)}"


def _explained(found: MeasureVerdict, noise: DifferenceNoise) -> MeasureVerdict:
    """The verdict with its reason."""
    text = f"{found.name} moved by {_moved(found)}"
    unit = unit_of(found.name, found.obtained, found.expected)
    allowed = f"{number(found.limit)}{unit}"
    if found.word == "fail":
        way = {"narrower": "towards a narrower ERF", "wider": "towards a wider ERF", "both": "either way"}[
            found.tolerance.side
        ]
        return replace(found, reason=f"{text}, more than the {allowed} ({found.tolerance}) tolerated {way}")
    kind = "noise" if found.se else "rounding"
    cause = f"{kind} of up to {number(noise.most)}{unit} is more than the tolerance of {allowed}"
    if found.needed is None:
        return replace(
            found,
            reason=f"{text}: {cause}, and no practical number of samples would change that; write a larger tolerance",
        )
    word = "draws" if found.obtained is not None and found.obtained.over == "draws" else "samples"
    return replace(found, reason=f"{text}: {cause}; {found.needed} {word} would settle it")


def shown_word(word: str) -> str:
    """A verdict as people read it."""
    return SHOWN.get(word, word)


def signed_difference(found: MeasureVerdict) -> str:
    """A measure's signed difference with its error, widened as all that stand behind ±: ``-7.2 ± 0.3``."""
    sides = [each.as_measured(found.name) for each in (found.obtained, found.expected) if each]
    error = found.se * max(each.widening for each in sides) if found.se else None
    return plus(rounded(found.difference, error)[0]) + with_error(found.difference, error)


def _moved(found: MeasureVerdict) -> str:
    return f"{signed_difference(found)}{unit_of(found.name, found.obtained, found.expected)}"
