"""Options of the command line, made from the fields that declare them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import rich_click as click
from click.core import ParameterSource

from erfscope.core.answer.storage import writing as formats
from erfscope.core.answer.storage.writing import is_folder
from erfscope.core.request.option import COMPUTATION, OUTPUT, PANELS, Building, Declared, Option, declared
from erfscope.core.request.settings import OPTIONS
from erfscope.core.values.errors import ErfscopeError
from erfscope.show.command.console import File, Text
from erfscope.show.figures.kinds import FIGURES, KINDS
from erfscope.show.figures.style import FigureStyle

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FORMATS = ("rich", "plain", "json", *formats.TABLES)
#: The options that say how a model is built, those for several values left out.
BUILDING = tuple(name for name in declared(Building) if name != "alpha")
#: All options of measurements.
MEASURING = tuple(OPTIONS)
#: Kinds of figures that show maps.
MAPS = tuple(kind.name for kind in KINDS if kind.maps)
#: Sources of a value, the best first.
SOURCES = (
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.DEFAULT,
)
#: Options that exclude each other: the one from the better source holds.
RIVALS = {"images": "synthetic", "synthetic": "images"}


def options(table: dict[str, Declared], *, in_panels: bool = True) -> Decorator:
    """The options that fields declare, in the panels of the help that they name, or among the command's own."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, each in reversed(table.items()):
            if each.option.panel:
                function = _click_option(name, each, panel=each.option.panel if in_panels else None)(function)
        for panel in reversed(PANELS if in_panels else ()):
            function = click.option_panel(panel)(function)
        return function

    return decorate


def table(*names: str, **helps: str) -> dict[str, Declared]:
    """Options of measurements for a command that measures nothing several times: their help offers no lists.

    Args:
        *names: Of :class:`erfscope.Options`.
        **helps: Another help text for some of them, by name.
    """
    return {
        name: replace(
            OPTIONS[name],
            option=replace(OPTIONS[name].option, several="", help=helps.get(name, OPTIONS[name].option.help)),
        )
        for name in names
    }


def _click_option(name: str, declared: Declared, *, panel: str | None) -> Decorator:
    """One option as click takes it."""
    option, default = declared.option, declared.default
    flags = (*(option.flags or (f"--{name.replace('_', '-')}",)), name)
    common: dict[str, Any] = {"help": option.text, "panel": panel}
    if declared.type is bool:
        return click.option(*flags, is_flag=True, **common)
    return click.option(
        *flags,
        type=_click_type(declared),
        multiple=option.is_repeatable,
        metavar=option.metavar or None,
        default=None if option.is_repeatable else default,
        show_default=default not in (None, ()),
        **common,
    )


def _click_type(declared: Declared) -> click.ParamType[Any]:
    """The kind of values that an option takes on the command line; its limits are checked with those of Python."""
    option = declared.option
    if option.is_file:
        return File()
    if option.read is None:
        for kind, number in ((int, click.INT), (float, click.FLOAT)):
            if declared.type in (kind, kind | None):
                return number
    return Text(read=option.read, words=option.words, is_closed=option.is_closed)


def outputs(answer: str, *, place: str, help: str) -> Decorator:
    """The options of a command that prints one answer as text or JSON, and writes it to one place.

    Args:
        answer: What it prints, such as "the plan".
        place: What ``-o`` names, such as "FILE".
        help: What is written there.
    """
    words = ("rich", "plain", "json")
    kinds, printed = Text(words=words, is_closed=True), f"How {answer} is printed: {', '.join(words)}."
    options = (
        click.option("-o", "--output", type=File(), metavar=place, help=help, panel=OUTPUT),
        click.option("--force", is_flag=True, help="Overwrite what -o names.", panel=OUTPUT),
        click.option("--format", type=kinds, metavar="NAME", default="rich", help=printed, panel=OUTPUT),
        click.option("--json", is_flag=True, help="The same as --format json.", panel=OUTPUT),
    )
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


with_verbose = click.option(
    "-v", "--verbose", is_flag=True, help="Print what was computed, and the traceback of an error."
)
#: For a command of another package that has no such option: an error's line speaks of it.
with_traceback = click.option("-v", is_flag=True, expose_value=False, help="Print the traceback of an error.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options of how a report is printed and written."""

    format: Annotated[
        str, Option("How the report is printed: {words}.", OUTPUT, metavar="NAME", words=FORMATS, is_closed=True)
    ] = "rich"
    json: Annotated[bool, Option("The same as --format json.", OUTPUT)] = False
    output: Annotated[
        tuple[str, ...],
        Option(
            f"Folder, or {' '.join(formats.FORMATS)}; repeatable.",
            OUTPUT,
            metavar="PATH",
            flags=("-o", "--output"),
            is_file=True,
            is_repeatable=True,
        ),
    ] = ()
    figure: Annotated[
        str | None,
        Option(
            "Figure that -o draws: {words}. Default: panel; with --unit all positions.",
            OUTPUT,
            metavar="KIND",
            words=tuple(FIGURES),
            is_closed=True,
        ),
    ] = None
    force: Annotated[bool, Option("Overwrite what -o names.", OUTPUT)] = False
    quiet: Annotated[
        bool, Option("Print one line for each result and nothing else.", OUTPUT, flags=("-q", "--quiet"))
    ] = False
    explain: Annotated[bool, Option("Print what each number means, with its formula and source.", OUTPUT)] = False
    resume: Annotated[
        bool,
        Option("Continue the run in the folder that -o names: measure only what is missing.", COMPUTATION),
    ] = False
    #: How figures are drawn.
    style: FigureStyle = field(default_factory=FigureStyle)

    @property
    def folders(self) -> list[str]:
        """The folders among the outputs."""
        return list(filter(is_folder, self.output))

    def replaces(self, path: str) -> bool:
        """Whether an output may replace one of that name."""
        return self.force or (self.resume and is_folder(path))

    @classmethod
    def from_options(cls, given: dict[str, Any]) -> Self:
        """Take these options out of those of the running command."""
        own = {name: given.pop(name) for name in OUTPUT_OPTIONS if name in given}
        style = FigureStyle(**{name: own.pop(name) for name in STYLE_OPTIONS if name in own})
        style.check()
        return cls(**{**own, "format": chosen_format(own["format"], own["json"]), "style": style})


#: A checkpoint of each model.
CHECKPOINTS = replace(
    OPTIONS["checkpoint"],
    option=replace(
        OPTIONS["checkpoint"].option,
        help=".safetensors or .pth file with the weights of the model of this label; repeatable.",
        metavar="LABEL=FILE",
        is_repeatable=True,
    ),
)
STYLE_OPTIONS = declared(FigureStyle)
OUTPUT_OPTIONS = declared(OutputOptions) | STYLE_OPTIONS


def keywords(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options as keywords of :func:`erfscope.analyze`; those that were left out are left out.

    Args:
        *layers: Options of the command line, settings files and the like, the best source last.

    Raises:
        ErfscopeError: a --model-kwargs is no K=V.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for name in layer:
            merged.pop(RIVALS.get(name, ""), None)
        merged |= layer
    kept = {name: value for name, value in merged.items() if value not in (None, ()) and value is not False}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    if "model_kwargs" in kept:
        kept["model_kwargs"] = dict(map(pair, kept["model_kwargs"]))
    return kept


def by_source(given: Mapping[str, Any]) -> dict[ParameterSource, dict[str, Any]]:
    """The options given to the running command, by their source, the best source last."""
    return {
        source: {name: value for name, value in given.items() if source_of(name) is source}
        for source in reversed(SOURCES)
    }


def source_of(name: str) -> ParameterSource:
    """The source of a parameter of the running command: one of ``SOURCES``."""
    context: Any = click.get_current_context()
    found: ParameterSource | None = context.get_parameter_source(name)
    return found or ParameterSource.DEFAULT


def on_command_line(name: str) -> bool:
    """Whether a parameter of the running command stands on the command line, not in a file or a variable."""
    return source_of(name) is ParameterSource.COMMANDLINE


def chosen_format(asked: str, as_json: bool) -> str:
    """The format to print in: ``--json`` counts unless ``--format`` has a better source."""
    json, format = (SOURCES.index(source_of(name)) for name in ("json", "format"))
    return "json" if as_json and json <= format else asked


def pair(text: str) -> tuple[str, Any]:
    """``k=v`` with v read as a Python literal where it is one."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip().isidentifier():
        raise ErfscopeError(f"cannot read --model-kwargs {text!r}; write NAME=VALUE, e.g. --model-kwargs depth=4")
    try:
        return name.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name.strip(), value
