"""What a search is to reach, and what it may cost: ``r50>=120``, ``halo<=64``, ``gmacs<=+10%``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from erfscope.core import MEASURES, ErfscopeError, unknown

#: What a budget bounds.
COSTS = ("gmacs", "params", "memory")
HALO = "halo"
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=)\s*(\+?)\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*(%|x?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One condition on a number of a candidate."""

    name: str
    #: Whether the number must not be larger, or not be smaller.
    is_most: bool
    value: float
    #: Whether the value is a factor of the model's own number.
    is_factor: bool
    text: str

    def limit(self, own: float) -> float:
        """The number itself, given that of the unchanged model."""
        return self.value * own if self.is_factor else self.value

    def holds(self, found: float | None, own: float | None) -> bool:
        """Whether a candidate's number meets it; unknown numbers do not."""
        if found is None or (self.is_factor and own is None):
            return False
        return self.margin(found, own or 0.0) >= 0

    def margin(self, found: float, own: float) -> float:
        """How far a candidate's number lies beyond the limit; negative where it does not meet it."""
        return (self.limit(own) - found) * (1 if self.is_most else -1)


def parse_target(text: str) -> Bound:
    """Read a target: a measure or ``halo``, at least or at most a number.

    Raises:
        ErfscopeError: another form, an unknown measure, or a halo that is to be large.
    """
    bound = _parse(text, "--target", (*MEASURES, HALO), "r50>=120 or halo<=64")
    if bound.name == HALO and not bound.is_most:
        raise ErfscopeError(f"a halo is to be small: write halo<={bound.value:g}, not {text!r}")
    return bound


def parse_budget(text: str) -> Bound:
    """Read a budget: ``gmacs``, ``params`` or ``memory``, at most a number, ``+10%`` or ``2x`` of the model's own.

    Raises:
        ErfscopeError: another form, or another name.
    """
    bound = _parse(text, "--budget", COSTS, "gmacs<=+10%, params<=2x or memory<=+20%")
    if not bound.is_most:
        raise ErfscopeError(f"a budget is an upper limit: write {bound.name}<=..., not {text!r}")
    return bound


def _parse(text: str, option: str, names: tuple[str, ...], example: str) -> Bound:
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ErfscopeError(f"cannot read {option} {text!r}; write NAME<=NUMBER or NAME>=NUMBER, such as {example}")
    name, sign, plus, digits, unit = found.groups()
    if name not in names:
        raise unknown(f"name in {option}", name, names, limit=40)
    if plus and unit != "%":
        raise ErfscopeError(f"cannot read {option} {text!r}: after + stands a percentage, as in {name}{sign}+10%")
    if unit == "%" and not plus:
        more = f"{name}{sign}+{digits}% for as much more, or {name}{sign}{float(digits) / 100:g}x for that part of it"
        raise ErfscopeError(f"{text!r} may mean two things: write {more}")
    value = float(digits) / (100 if unit == "%" else 1) + (1 if plus else 0)
    return Bound(name=name, is_most=sign == "<=", value=value, is_factor=bool(unit), text=text.replace(" ", ""))
