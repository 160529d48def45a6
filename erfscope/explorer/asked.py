"""What a live page asks for: the parameters of a request, read once into values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import parse_qs

from erfscope.errors import ErfscopeError


class BadRequest(ErfscopeError):
    """A request that no page of erfscope makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parameters of a request, each with what holds where it is left out."""

    #: The number of a model.
    model: int = 0
    #: Layers whose units are asked about.
    stages: Sequence[str] = ()
    #: Row and column.
    unit: Sequence[int] = ()
    #: First and last row, first and last column of the image.
    box: Sequence[int] = ()
    #: The layer that is shown beside the others, and the reference, of each model.
    layers: Sequence[str] = ()
    references: Sequence[str] = ()
    convention: str | None = None
    #: The name that the server gave to a picture; "" for the first one.
    picture: str = ""


class Parameters:
    """The parameters of a request by name, as text."""

    def __init__(self, query: str) -> None:
        self._values = parse_qs(query, keep_blank_values=True)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def some(self, name: str, most: int) -> list[str]:
        """The values of a parameter, ``most`` at most, or none.

        Raises:
            BadRequest: there are more.
        """
        values = self._values.get(name, [])
        if len(values) > most:
            raise BadRequest(f"{name} is given {len(values)} times; give it {most} times at most")
        return values

    def one(self, name: str) -> str:
        """The value of a parameter.

        Raises:
            BadRequest: it is missing, empty or repeated.
        """
        value = next(iter(self.some(name, 1)), "")
        if not value:
            raise BadRequest(f"the request has no {name}; give it once, with a value")
        return value

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """So many whole numbers from 0 on, with commas between them.

        Raises:
            BadRequest: the value is another one.
        """
        text = self.one(name)
        if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text) or text.count(",") != count - 1:
            form = ",".join("0" * count)
            raise BadRequest(f"{name} is {text[:40]!r}; write {count} whole number{'s' * (count > 1)}, such as {form}")
        return tuple(map(int, text.split(",")))


def page_asked(query: str, models: int) -> Asked:
    """What a page of so many models asks for.

    Raises:
        BadRequest: a parameter is repeated, or has no value.
    """
    given = Parameters(query)
    return Asked(
        layers=given.some("layer", models),
        references=given.some("wrt", models),
        convention=given.one("convention") if "convention" in given else None,
        picture=next(iter(given.some("picture", 1)), ""),
    )


def unit_asked(query: str, models: int) -> Asked:
    """One unit of a layer.

    Raises:
        BadRequest: a parameter is missing, repeated or of another form.
    """
    given = Parameters(query)
    return replace(_of_a_model(query, models), stages=(given.one("stage"),), unit=given.numbers("unit", 2))


def field_asked(query: str, models: int) -> Asked:
    """The units of some layers that a box of pixels moves.

    Raises:
        BadRequest: a parameter is missing, repeated or of another form.
    """
    given = Parameters(query)
    stages, box = given.some("stage", 1000), given.numbers("box", 4)
    if not stages or not all(stages):
        raise BadRequest("the request has no stage, or one without a name; name a layer")
    if box[0] > box[1] or box[2] > box[3]:
        raise BadRequest(f"the box {','.join(map(str, box))} ends before it begins; write top,bottom,left,right")
    return replace(_of_a_model(query, models), stages=stages, box=box)


def _of_a_model(query: str, models: int) -> Asked:
    (model,) = Parameters(query).numbers("model", 1)
    if model >= models:
        raise BadRequest(f"there is no model {model}; the page has {models}, counted from 0")
    return replace(page_asked(query, models), model=model)
