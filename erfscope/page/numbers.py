"""Numbers of a page: each is the JSON's own, at full precision, beside the rounded text that is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from erfscope.tables.columns import number, rounded

Form = Literal["plain", "percent", "millions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of the JSON document as it stands on the page."""

    #: JSON pointer (RFC 6901) to the number in :meth:`erfscope.results.report.Report.to_json`.
    pointer: str
    #: The number as JSON has it: ``repr`` of it, "" for null.
    full: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number with its standard error."""

    value: Number
    se: Number | None
    #: What a table sorts by; None where there is no number.
    sort: float | None = None


def number_at(document: Mapping[str, Any], *parts: str | int, form: Form = "plain") -> Number:
    """A number of the document.

    Args:
        document: What :meth:`erfscope.results.report.Report.to_json` gives.
        parts: Keys and indices that lead to the number.
        form: ``"plain"`` (three digits), ``"percent"`` or ``"millions"``.

    Raises:
        KeyError, IndexError: nothing is there.
    """
    value = _at(document, parts)
    return _number(parts, value, _FORMS[form](value))


def reading_at(document: Mapping[str, Any], *parts: str | int) -> Reading:
    """The ``value`` and ``se`` that stand at a place of the document, rounded together.

    Raises:
        KeyError, IndexError: nothing is there.
    """
    entry = _at(document, parts)
    value, se = entry["value"], entry["se"]
    text, error = rounded(value, se)
    return Reading(
        value=_number((*parts, "value"), value, text),
        se=_number((*parts, "se"), se, error) if error is not None else None,
        sort=value if isinstance(value, int | float) else None,
    )


def _number(parts: tuple[str | int, ...], value: Any, text: str) -> Number:
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    full = "" if value is None else value if isinstance(value, str) else repr(value)
    return Number(
        pointer="/" + "/".join(escaped), full=full, text=text if isinstance(value, str) else text.replace("-", "−")
    )


def _at(document: Any, parts: tuple[str | int, ...]) -> Any:
    for part in parts:
        document = document[part]
    return document


_FORMS: dict[Form, Callable[[Any], str]] = {
    "plain": number,
    "percent": lambda value: "–" if value is None else f"{number(100 * value, digits=2)} %",
    "millions": lambda value: "–" if value is None else f"{number(value / 1e6)} M",
}
