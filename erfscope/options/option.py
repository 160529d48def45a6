"""The record that declares an option, beside its name, type and default: the command line, settings files, checks and
the documentation follow from it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from erfscope.errors import ErfscopeError, unknown

#: Panels of the help, in order.
WHAT, IMAGES, MODEL, COMPUTATION, OUTPUT = "What is measured", "Images", "Model", "Computation", "Output"
PANELS = (WHAT, IMAGES, MODEL, COMPUTATION, OUTPUT)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the annotation of the field that declares it."""

    #: One sentence or two, for :attr:`text`; ``{words}`` and ``{several}`` stand for the fields of these names.
    help: str
    #: One of :data:`PANELS`; "" for what Python alone takes.
    panel: str = ""
    _: KW_ONLY
    #: The default of a keyword, whose field has none.
    default: Any = None
    #: What the help calls the value.
    metavar: str = ""
    #: Its names on the command line, where they are more than one.
    flags: tuple[str, ...] = ()
    #: Values that a shell offers at TAB.
    words: tuple[str, ...] = ()
    #: Whether there are no others.
    is_closed: bool = False
    is_file: bool = False
    is_repeatable: bool = False
    #: How several values are given, each of which is measured; "" for an option of one value.
    several: str = ""
    least: float = -math.inf
    most: float = math.inf
    #: Text of the command line -> the value; a ValueError says what can be read.
    read: Callable[[str], Any] | None = None
    #: "recorded": results that stand in one table, a run that goes on, and a check and its baseline share it, and
    #: :attr:`erfscope.Result.options` holds it where it is not the default. "free": it changes nothing about what is
    #: measured, so that a run may go on with another value. "": it decides which images or numbers there are.
    counts: Literal["", "recorded", "free"] = ""
    #: The type that the Python functions take, where it is wider than that of the field.
    accepts: str = ""
    #: What the keyword of Python takes besides.
    in_python: str = ""

    @property
    def text(self) -> str:
        """The help, which the documentation shows too."""
        several = self.several and f"; {self.several}"
        return self.help.replace("{words}", ", ".join(self.words)).replace("{several}", several)

    def refuse(self, name: str, value: Any) -> None:
        """Refuse a value that does not exist, or lies outside the limits.

        Raises:
            ErfscopeError: it does.
        """
        text = name.replace("_", "-")
        if self.is_closed and value is not None and value not in self.words:
            raise unknown(text.replace("-", " "), str(value), self.words)
        is_number = isinstance(value, Real)
        if is_number and not self.least <= value <= self.most:
            limit = f"most {self.most}" if value > self.most else f"least {self.least}"
            words = "".join(f" or {word!r}" for word in self.words)
            raise ErfscopeError(f"{text} must be at {limit}{words}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """An option with its type and its default."""

    type: Any
    default: Any
    option: Option
    #: The type that the Python functions take, as source code.
    accepts: str


def declared(*tables: type) -> dict[str, Declared]:
    """The options that the fields of some classes declare, by name."""
    found = {}
    for table in tables:
        defaults: dict[str, Any] = getattr(table, "__dataclass_fields__", {})
        for name, hint in get_type_hints(table, include_extras=True).items():
            if get_origin(hint) is Annotated:
                kind, option = get_args(hint)
                default = defaults[name].default if name in defaults else option.default
                accepts = option.accepts or _source(table.__annotations__[name])
                found[name] = Declared(type=kind, default=default, option=option, accepts=accepts)
    return found


def _source(annotation: Any) -> str:
    """The type in an ``Annotated[...]`` that is not evaluated."""
    tree: Any = ast.parse(getattr(annotation, "__forward_arg__", annotation), mode="eval")
    return ast.unparse(tree.body.slice.elts[0]).replace("'", '"')
