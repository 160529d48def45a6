"""How far measures may move: tolerances, read from text, and refused where nothing could exceed them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from erfscope.apps.gate.baseline import BaselineEntry, BaselineMeasure
from erfscope.core import MEASURES, ErfscopeError, unknown
from erfscope.show import number, size_text

Side = Literal["narrower", "wider", "both"]
#: The measures that are guarded by default.
GUARDED = ("r50", "r90", "far_mass")
#: Those of units without a place.
GUARDED_WITHOUT_PLACE = ("centroid_r50", "centroid_r90", "entropy_area")
#: By how many degrees an axis turns at most.
MOST_TURN = 90
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

    def guards(self, name: str, expected: float) -> bool:
        """Whether a measure with this expected value can move by more than is tolerated in the guarded direction: a
        share lies between 0 and 1, an angle turns by at most 90 degrees, and no size falls below 0."""
        measure = MEASURES[name]
        rises = falls = MOST_TURN if measure.kind == "angle" else math.inf
        if measure.kind == "share":
            rises = 1 - expected
        if measure.kind == "share" or measure.wider == 1:
            falls = expected
        narrower, wider = (rises, falls) if measure.wider == -1 else (falls, rises)
        # An absolute number that no loss exceeds is an error even where a gain would.
        both = max(falls, rises) if self.relative or measure.wider is None else narrower
        return self.limit(expected) < {"narrower": narrower, "wider": wider, "both": both}[self.side]

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
    if measure.kind == "angle" and found.amount >= MOST_TURN:
        raise ErfscopeError(
            f"{name} turns by 90 degrees at most, so that {word!r} guards nothing; write fewer, such as 5"
        )
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
    return GUARDED if has_place else GUARDED_WITHOUT_PLACE


def defaults(*, same_weights: bool, has_place: bool = True) -> dict[str, Tolerance]:
    """The tolerances of a check that names none.

    Args:
        same_weights: Whether the weights are those of the baseline.
        has_place: Whether the unit has a place.
    """
    return {name: parse(name, SAME_WEIGHTS if same_weights else DEFAULT) for name in guarded(has_place=has_place)}


def pointless(name: str, tolerance: Tolerance, expected: BaselineMeasure) -> str:
    """Why a tolerance guards nothing, given what the baseline has of the measure; "" where it guards something."""
    if expected.value is None or tolerance.guards(name, expected.value):
        return ""
    fix = "write a percentage, such as -5%" if expected.value > 0 and not tolerance.relative else f"leave {name} out"
    value = f"{number(expected.value)}{unit_of(name, expected)}"
    return f"{name} is {value} in the baseline, so that {str(tolerance)!r} guards nothing; {fix}"


def refuse_pointless(allowed: Mapping[str, Tolerance], expected: BaselineEntry | None) -> None:
    """Refuse absolute tolerances that guard nothing, given the baseline's entry; a percentage of 0 is a notice.

    Raises:
        ErfscopeError: there is one.
    """
    for name, tolerance in allowed.items():
        known = None if expected is None else expected.measures.get(name)
        if known is not None and not tolerance.relative and (text := pointless(name, tolerance, known)):
            raise ErfscopeError(text)


def is_absolute_length(name: str, tolerance: Tolerance) -> bool:
    """Whether a tolerance is a length or an area of a measure that lies within the input."""
    return not tolerance.relative and MEASURES[name].unit in ("px", "px2") and not MEASURES[name].is_fit


def refuse_beyond(allowed: Mapping[str, Tolerance], size: Sequence[int]) -> None:
    """Refuse tolerances of lengths, or areas, of which an image of this size has none.

    Raises:
        ErfscopeError: there is one.
    """
    for name, tolerance in allowed.items():
        # A side may be twice a distance from the unit.
        length = math.hypot(*size) * (2 if MEASURES[name].kind == "width" else 1)
        most = math.prod(size) if MEASURES[name].unit == "px2" else length
        if is_absolute_length(name, tolerance) and tolerance.amount >= most:
            raise ErfscopeError(
                f"{name} is at most {number(most)} {MEASURES[name].unit} on an input of {size_text(size)}, so that"
                f" {str(tolerance)!r} guards nothing; write a percentage, such as {tolerance.sign}5%"
            )


def unit_of(name: str, *values: BaselineMeasure | None) -> str:
    """The unit of a measure of some values, with a space before it; "" for a plain number."""
    unit = next((value.unit for value in values if value and value.unit), MEASURES[name].unit)
    return f" {unit}" if unit else ""
