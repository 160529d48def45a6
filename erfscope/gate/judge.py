"""Verdicts on single measures: which differences are within the tolerance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from erfscope.errors import ErfscopeError, unknown
from erfscope.gate.baseline import BaselineMeasure
from erfscope.gate.noise import Noise, Word, decide, needed, noise_of
from erfscope.maps.accumulator import HALF_TURN, MIN_GROUPS, jackknife_se, widening
from erfscope.measures import MEASURES, SHOWN_WITHOUT_PLACE
from erfscope.measures.values import paired_difference
from erfscope.printable import number, with_error

Side = Literal["narrower", "wider", "both"]
#: The measures that are guarded by default.
GUARDED = ("r50", "r90", "far_mass")
#: The default tolerance, and the one where the weights are the same, so that nothing but the measurement can have
#: moved.
DEFAULT, SAME_WEIGHTS = "-5%", "1%"

_WORD = re.compile(r"([+-]?)\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*(%?)", re.IGNORECASE)
#: No measure moves by so much, in its own unit or relative to itself.
LARGEST = 1e9
_SIDES: dict[str, Side] = {"-": "narrower", "+": "wider", "": "both"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far one measure may move, and which way is guarded."""

    #: "narrower": a smaller ERF is guarded against; "wider": a larger one; "both".
    side: Side
    #: Not negative: a share of the expected value where ``relative``, else in the measure's unit.
    amount: float
    relative: bool

    def __post_init__(self) -> None:
        """Refuse a tolerance that lets everything pass.

        Raises:
            ErfscopeError: an amount that is negative, no finite number, or larger than any measure; or no such side.
        """
        if isinstance(self.amount, bool) or not isinstance(self.amount, int | float) or not 0 <= self.amount < LARGEST:
            raise ErfscopeError(f"the amount of a tolerance is a number from 0 to {LARGEST:g}, not {self.amount!r}")
        if self.side not in _SIDES.values():
            raise ErfscopeError(f"a tolerance guards against 'narrower', 'wider' or 'both', not {self.side!r}")

    def limit(self, expected: float) -> float:
        """The tolerated move in the measure's unit, given the expected value."""
        return self.amount * abs(expected) if self.relative else self.amount

    def move(self, difference: float, wider: Literal[1, -1] | None) -> float:
        """How far a measure has moved in the guarded direction; negative for a move the other way.

        Args:
            difference: Obtained minus expected, in the measure's unit.
            wider: Which way a larger ERF moves the measure: +1, -1, or None where it has no direction.
        """
        if self.side == "both" or wider is None:
            return abs(difference)
        return difference * wider * (1 if self.side == "wider" else -1)

    def guards(self, expected: float, wider: Literal[1, -1] | None) -> bool:
        """Whether a measure with this expected value can move by more than is tolerated where all of an ERF is lost.

        A percentage below 100 % does what it says, also for a value near the end of its range.
        """
        lost = 1 - expected if wider == -1 else expected
        return self.relative or self.side == "wider" or wider is None or self.amount < lost

    @property
    def sign(self) -> str:
        """The sign before the number: "-", "+" or nothing."""
        return next(sign for sign, side in _SIDES.items() if side == self.side)

    def __str__(self) -> str:
        """The text, as it is written in a configuration: ``-5%``."""
        return f"{self.sign}{abs(self.amount) * 100:g}%" if self.relative else f"{self.sign}{abs(self.amount):g}"


def parse(name: str, word: object) -> Tolerance:
    """The tolerance that a text means for one measure.

    Args:
        name: The measure.
        word: ``"-5%"`` (the ERF may not become narrower by more than 5 %), ``"+5%"`` (wider), ``"5%"`` (neither), or
            the same without a percent sign, in the measure's own unit; also a number, or a :class:`Tolerance`.

    Raises:
        ErfscopeError: no such measure, one that is not a number, a text that cannot be read, a sign where the measure
            has no direction, or a tolerance that guards nothing whatever the baseline has.
    """
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES, limit=40)
    measure = MEASURES[name]
    if measure.kind == "shape":
        raise ErfscopeError(f"{name} is a word, not a number, and takes no tolerance")
    found = word if isinstance(word, Tolerance) else _read(name, word)
    _refuse_pointless(name, found, str(word).strip())
    return found


def _read(name: str, word: object) -> Tolerance:
    """A tolerance from its text; the measure's name is for errors."""
    found = None if isinstance(word, bool) else _WORD.fullmatch(str(word).strip())
    if found is None:
        raise ErfscopeError(
            f"cannot read the tolerance {word!r} of {name}; write -5% (guards against a narrower ERF), +5% (wider)"
            " or 5%"
        )
    sign, digits, exponent, percent = found.groups()
    amount = float(digits + (exponent or "")) / (100 if percent else 1)
    if not math.isfinite(amount):
        raise ErfscopeError(
            f"the tolerance {word!r} of {name} is not finite; write a percentage, such as {sign + '5%'!r}"
        )
    if amount >= LARGEST:
        raise ErfscopeError(
            f"the tolerance {word!r} of {name} guards nothing; write a percentage, such as {sign + '5%'!r}"
        )
    return Tolerance(side=_SIDES[sign], amount=amount, relative=bool(percent))


def _refuse_pointless(name: str, found: Tolerance, word: str) -> None:
    """Refuse a tolerance that no value of a measure could exceed, or that has no meaning for it."""
    measure, sign = MEASURES[name], found.sign
    if sign and measure.wider is None:
        bare = word.lstrip("+-") if word.startswith(("+", "-")) else str(replace(found, side="both"))
        raise ErfscopeError(
            f"{name} does not say which of two ERFs is larger, so {word!r} guards nothing; write {bare!r} for both ways"
        )
    if found.relative and measure.kind == "angle":
        raise ErfscopeError(f"{name} is an angle and takes no percentage; write degrees, such as 5")
    falls = found.side == "both" or sign == ("-" if measure.wider == 1 else "+")
    if found.relative and found.amount >= 1 and falls and measure.wider is not None:
        other = "" if sign else f", or {('+' if measure.wider == 1 else '-') + word!r} for one way"
        raise ErfscopeError(
            f"{name} cannot fall by {found.amount * 100:g} %, so that {word!r} guards nothing; write less than 100"
            f" %{other}"
        )
    if measure.kind == "share" and not found.relative and found.amount >= 1:
        meant = f"{sign}{found.amount:g}%" if found.amount < 100 else f"{sign}5%"
        raise ErfscopeError(
            f"{name} is a share from 0 to 1, so that {word!r} guards nothing; write {meant!r} for a percentage of its"
            " value"
        )


def tolerances(words: Mapping[str, object]) -> dict[str, Tolerance]:
    """Tolerances of several measures, in the order given; see :func:`parse`.

    Raises:
        ErfscopeError: no mapping, a measure that is named twice, or as for :func:`parse`.
    """
    if not isinstance(words, Mapping):
        raise ErfscopeError(f"tolerances are a mapping such as {{'r50': '-5%'}}, not {words!r}")
    names = [str(name).strip() for name in words]
    if len(set(names)) < len(names):
        raise ErfscopeError(f"a tolerance is given twice: {', '.join(names)}")
    return {name: parse(name, word) for name, word in zip(names, words.values(), strict=True)}


def from_pairs(texts: Iterable[str]) -> dict[str, Tolerance]:
    """Tolerances from ``"r50=-5%"`` or ``"r50=-5%,r90=5%"``, as the command line has them.

    Raises:
        ErfscopeError: a text that is not MEASURE=TOLERANCE.
    """
    found: dict[str, Tolerance] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not part:
            continue
        name, equals, word = part.partition("=")
        if not equals:
            raise ErfscopeError(f"cannot read the tolerance {part!r}; write MEASURE=TOLERANCE, such as r50=-5%")
        if name.strip() in found:
            raise ErfscopeError(f"the tolerance of {name.strip()} is given twice")
        found |= tolerances({name: word})
    return found


def guarded(*, has_place: bool) -> tuple[str, ...]:
    """The measures that a check guards which names none: other ones of units without a place."""
    return GUARDED if has_place else SHOWN_WITHOUT_PLACE


def defaults(*, same_weights: bool, has_place: bool = True) -> dict[str, Tolerance]:
    """The tolerances of a check that names none.

    Args:
        same_weights: Whether the weights are those of the baseline.
        has_place: Whether the unit has a place.
    """
    return {name: parse(name, SAME_WEIGHTS if same_weights else DEFAULT) for name in guarded(has_place=has_place)}


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
    #: The jackknife's standard error of the difference, which the decision widens: over the same images in pairs where
    #: that is possible.
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
    *,
    measures: int = 1,
    looks: int = 1,
) -> MeasureVerdict:
    """Compare one measure with what is expected of it, by :func:`erfscope.gate.noise.decide`.

    Args:
        name: The measure.
        tolerance: How far it may move.
        obtained: What was found; None if it was not measured.
        expected: What the baseline has; None if it has none.
        measures: How many measures are guarded with it.
        looks: How often the check may be decided, over more and more images.
    """
    blank = MeasureVerdict(name=name, word="cannot tell", obtained=obtained, expected=expected, tolerance=tolerance)
    if expected is None or obtained is None:
        return replace(blank, reason=f"{name} {'is not in the baseline' if expected is None else 'was not measured'}")
    if expected.value is None or obtained.value is None:
        where = "this map" if obtained.value is None else "the map of the baseline"
        return replace(blank, reason=f"{name} does not exist for {where}")
    if not tolerance.guards(expected.value, MEASURES[name].wider):
        value = f"{number(expected.value)}{unit_of(name, expected)}"
        text = f"{name} is {value} in the baseline, so that {str(tolerance)!r} guards nothing"
        return replace(blank, reason=f"{text}; write a percentage, such as -5%")
    difference, se = _difference(name, obtained, expected)
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
    word = decide(tolerance.move(difference, wider), limit, noise)
    found = replace(blank, word=word, limit=limit, difference=difference, se=se)
    if word == "pass":
        return replace(found, notice=_improvement_notice(found, noise))
    enough = needed(obtained.n, noise, limit) if word == "cannot tell" else None
    return _explained(replace(found, needed=enough), noise)


def _difference(name: str, obtained: BaselineMeasure, expected: BaselineMeasure) -> tuple[float, float | None]:
    """Obtained minus expected, and the jackknife's standard error of that, which the decision widens by Student's
    quantile; 0 for a measure that never has one. Both are over as many images, whose bias cancels."""
    difference, _ = paired_difference(obtained.as_measured(name), expected.as_measured(name))
    assert difference is not None
    if not MEASURES[name].has_se:
        return difference, 0.0
    ours, theirs = obtained.leave_one_out, expected.leave_one_out
    if len(ours) == len(theirs) >= MIN_GROUPS:
        period = HALF_TURN if MEASURES[name].kind == "angle" else None
        return difference, jackknife_se([a - b for a, b in zip(ours, theirs, strict=True)], period=period)
    if min(len(ours), len(theirs)) < MIN_GROUPS:
        return difference, None
    # Images were lost on one side, and whole groups with them: what is left are two separate measurements.
    return difference, math.hypot(jackknife_se(ours), jackknife_se(theirs))


def _improvement_notice(found: MeasureVerdict, noise: Noise) -> str:
    """The notice of a clear move the other way."""
    wider, tolerance = MEASURES[found.name].wider, found.tolerance
    assert found.difference is not None
    assert found.limit is not None
    enough = max(found.limit, noise.of_any)
    if tolerance.side == "both" or wider is None or -tolerance.move(found.difference, wider) <= enough:
        return ""
    return f"the ERF became {'wider' if tolerance.side == 'narrower' else 'narrower'}: {found.name} {_moved(found)}"


def _explained(found: MeasureVerdict, noise: Noise) -> MeasureVerdict:
    """The verdict with its reason."""
    text = f"{found.name} moved by {_moved(found)}"
    unit = unit_of(found.name, found.obtained, found.expected)
    allowed = f"{number(found.limit)}{unit}"
    if found.word == "fail":
        way = {"narrower": "towards a narrower ERF", "wider": "towards a wider ERF", "both": "either way"}[
            found.tolerance.side
        ]
        return replace(found, reason=f"{text}, more than the {allowed} ({found.tolerance}) tolerated {way}")
    cause = f"noise of up to {number(noise.most)}{unit} is more than the tolerance of {allowed}"
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
    groups = min((len(each.leave_one_out) for each in (found.obtained, found.expected) if each), default=0)
    error = found.se * widening(groups - 1) if found.se and groups >= MIN_GROUPS else None
    text = with_error(found.difference, error)
    return text if text.startswith("-") else f"+{text}"


def _moved(found: MeasureVerdict) -> str:
    return f"{signed_difference(found)}{unit_of(found.name, found.obtained, found.expected)}"


def unit_of(name: str, *values: BaselineMeasure | None) -> str:
    """The unit of a measure of some values, with a space before it; "" for a plain number."""
    unit = next((value.unit for value in values if value and value.unit), MEASURES[name].unit)
    return f" {unit}" if unit else ""
