"""One measure against its baseline: the decision rule, with its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from erfscope.gate.entry import BaselineMeasure
from erfscope.gate.tolerance import Tolerance
from erfscope.measures import MEASURES
from erfscope.measures.values import paired_difference
from erfscope.printable import number, with_error

Word = Literal["pass", "fail", "cannot tell"]
#: Verdicts as people read them, where that is not the word that code and JSON have.
SHOWN = {"cannot tell": "inconclusive", "new": "baseline created"}
#: Standard errors of the difference that count as noise.
NOISE = 3.0
#: A standard error from ten groups is itself uncertain by a quarter, so that its square may be twice as large next
#: time.
MARGIN = 2.0
#: Samples that are proposed where there are too few for an error bar: what is measured unless asked otherwise.
SAMPLES = 20
#: More samples than this are not proposed.
MOST = 100_000


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
    #: Standard error of the difference: over the same images in pairs where that is possible.
    se: float | None = None
    #: How many samples would make it a verdict; None where it is one, or no number would.
    needed: int | None = None
    #: Why it is not a pass; "" where it is.
    reason: str = ""
    #: A clear change in the unguarded direction; "" where there is none.
    notice: str = ""


def judge(
    name: str,
    tolerance: Tolerance,
    obtained: BaselineMeasure | None,
    expected: BaselineMeasure | None,
) -> MeasureVerdict:
    """Compare one measure with what is expected of it.

    With D the move in the guarded direction, T the tolerance in the measure's unit and S three standard errors of the
    difference: D > T + S fails; D < T - S passes, which a clear move the other way does however noisy it is; else S > T
    is inconclusive; else D > T fails; else it passes.

    Args:
        name: The measure.
        tolerance: How far it may move.
        obtained: What was found; None if it was not measured.
        expected: What the baseline has; None if it has none.
    """
    blank = MeasureVerdict(name=name, word="cannot tell", obtained=obtained, expected=expected, tolerance=tolerance)
    if expected is None or obtained is None:
        return replace(blank, reason=f"{name} {'is not in the baseline' if expected is None else 'was not measured'}")
    if expected.value is None or obtained.value is None:
        where = "this map" if obtained.value is None else "the map of the baseline"
        return replace(blank, reason=f"{name} does not exist for {where}")
    if not tolerance.guards(expected.value, MEASURES[name].wider):
        value = f"{number(expected.value)}{unit_of(name)}"
        text = f"{name} is {value} in the baseline, so that {str(tolerance)!r} guards nothing"
        return replace(blank, reason=f"{text}; write a percentage, such as -5%")
    difference, se = _difference(name, obtained, expected)
    if se is None:
        text = (
            f"{name} has no error bar: fewer than four groups of {obtained.over}, or one without which it does not"
            " exist"
        )
        return replace(blank, reason=f"{text}; {SAMPLES} samples would have one", needed=SAMPLES)
    limit, noise = tolerance.limit(expected.value), NOISE * se
    word = _word(tolerance.move(difference, MEASURES[name].wider), limit, noise)
    found = replace(blank, word=word, limit=limit, difference=difference, se=se)
    if word == "pass":
        return replace(found, notice=_improvement_notice(found))
    return _explained(replace(found, needed=_needed(obtained.n, noise, limit) if word == "cannot tell" else None))


def _word(move: float, limit: float, noise: float) -> Word:
    """The verdict on a move in the guarded direction."""
    if noise > limit and not (move > limit + noise or move < limit - noise):
        return "cannot tell"
    return "fail" if move > limit else "pass"


def _difference(name: str, obtained: BaselineMeasure, expected: BaselineMeasure) -> tuple[float, float | None]:
    """Obtained minus expected, and its standard error; 0 for a measure that never has one."""
    difference, se = paired_difference(obtained.as_measured(name), expected.as_measured(name))
    assert difference is not None
    if not MEASURES[name].has_se:
        return difference, 0.0
    if se is None and obtained.se is not None and expected.se is not None:
        # Images were lost on one side, and whole groups with them: what is left are two separate measurements.
        se = math.hypot(obtained.se, expected.se)
    return difference, se


def _needed(n: int, noise: float, limit: float) -> int | None:
    """The number of samples that brings the noise, which falls with its square root, below the tolerance: then there is
    always a verdict."""
    if limit <= 0:
        return None
    count = MARGIN * n * (noise / limit) ** 2
    # Tens fill the ten groups evenly.
    return 10 * math.ceil(count / 10) if count <= MOST else None


def _improvement_notice(found: MeasureVerdict) -> str:
    """The notice of a clear move the other way."""
    wider, tolerance = MEASURES[found.name].wider, found.tolerance
    assert found.difference is not None
    assert found.limit is not None
    enough = max(found.limit, NOISE * (found.se or 0))
    if tolerance.side == "both" or wider is None or -tolerance.move(found.difference, wider) <= enough:
        return ""
    return f"the ERF became {'wider' if tolerance.side == 'narrower' else 'narrower'}: {found.name} {_moved(found)}"


def _explained(found: MeasureVerdict) -> MeasureVerdict:
    assert found.difference is not None
    assert found.se is not None
    text = f"{found.name} moved by {_moved(found)}"
    allowed = f"{number(found.limit)}{unit_of(found.name)}"
    if found.word == "fail":
        way = {"narrower": "towards a narrower ERF", "wider": "towards a wider ERF", "both": "either way"}[
            found.tolerance.side
        ]
        return replace(found, reason=f"{text}, more than the {allowed} ({found.tolerance}) tolerated {way}")
    noise = (
        f"three standard errors, {number(NOISE * found.se)}{unit_of(found.name)}, are more than the tolerance of"
        f" {allowed}"
    )
    if found.needed is None:
        return replace(
            found,
            reason=f"{text}: {noise}, and no practical number of samples would change that; write a larger tolerance",
        )
    word = "draws" if found.obtained is not None and found.obtained.over == "draws" else "samples"
    return replace(found, reason=f"{text}: {noise}; {found.needed} {word} would settle it")


def shown_word(word: str) -> str:
    """A verdict as people read it."""
    return SHOWN.get(word, word)


def signed_difference(found: MeasureVerdict) -> str:
    """A measure's signed difference with its error: ``-7.2 ± 0.3``."""
    text = with_error(found.difference, found.se or None)
    return text if text.startswith("-") else f"+{text}"


def _moved(found: MeasureVerdict) -> str:
    return f"{signed_difference(found)}{unit_of(found.name)}"


def unit_of(name: str) -> str:
    """The unit of a measure, with a space before it; "" for a plain number."""
    unit = MEASURES[name].unit
    return f" {unit}" if unit else ""
