"""How far a measure can move from its value in a baseline: a tolerance of that size or more guards nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from erfscope.gate.tolerance import Tolerance
from erfscope.measures import MEASURES

#: Kinds of measures that are not negative, besides shares.
_SIZES = ("radius", "width", "sigma", "area")
#: The furthest that two axes can be from each other, in degrees.
_QUARTER_TURN = 90.0


def objection(name: str, tolerance: Tolerance, expected: float, *, size: Sequence[int] | None = None) -> str | None:
    """Why a tolerance guards nothing: a measure cannot exceed it, however much of the ERF is lost.

    A percentage below 100 % is what it says, also of a value that cannot move by it: 5 % of a share of 0.97 is
    tolerated to its end.

    Args:
        name: The measure.
        tolerance: How far it may move.
        expected: What the baseline has.
        size: Spatial size of the reference; None where it is not known.

    Returns:
        What is wrong and what to write instead; None where the tolerance guards.
    """
    limit = tolerance.limit(expected)
    if tolerance.relative and tolerance.amount < 1:
        return None
    fall, rise = room_to_move(name, expected, size)
    wider = MEASURES[name].wider
    if wider is None:
        # Without a direction, moves both ways are guarded.
        most = max(fall, rise)
        return _text(name, tolerance, expected, f"move by more than {most:.4g}") if limit >= most else None
    narrower, broader = (fall, rise) if wider == 1 else (rise, fall)
    guarded = (
        broader if tolerance.side == "wider" else narrower if tolerance.side == "narrower" else min(narrower, fall)
    )
    move = f"{'fall' if guarded == fall else 'rise'} by more than {guarded:.4g}"
    return _text(name, tolerance, expected, move) if limit >= guarded else None


def room_to_move(name: str, value: float, size: Sequence[int] | None = None) -> tuple[float, float]:
    """How far a measure can fall and rise from a value, in its own unit; infinite where nothing limits it.

    Args:
        name: The measure.
        value: From where.
        size: Spatial size of the reference; None where it is not known.
    """
    measure = MEASURES[name]
    if measure.kind == "angle":
        return _QUARTER_TURN, _QUARTER_TURN
    is_share = measure.kind == "share"
    is_amount = is_share or measure.kind in _SIZES or measure.wider is not None
    least = measure.least if measure.least is not None else 0.0 if is_amount else -math.inf
    most = measure.most if measure.most is not None else 1.0 if is_share else _largest(measure.kind, measure.unit, size)
    # A correction for noise may leave a value a little outside.
    return (value - least if value >= least else math.inf), (most - value if value <= most else math.inf)


def _largest(kind: str, unit: str, size: Sequence[int] | None) -> float:
    """The largest length or area on a reference: twice its diagonal, for squares around a corner, or all its cells."""
    if not size or unit not in ("px", "px2"):
        return math.inf
    return float(math.prod(size)) if kind == "area" else 2 * math.hypot(*size)


def _text(name: str, tolerance: Tolerance, expected: float, move: str) -> str:
    """The message: the tolerance, and what to write instead: a percentage, which grows and shrinks with the value."""
    text = (
        f"the tolerance {str(tolerance)!r} of {name} guards nothing: it is {expected:.4g} in the baseline, and cannot"
        f" {move}"
    )
    if expected == 0 or MEASURES[name].kind == "angle":
        return f"{text}; write a smaller one, or leave {name} out"
    return f"{text}; write a percentage, such as {tolerance.sign + '5%'!r}"
