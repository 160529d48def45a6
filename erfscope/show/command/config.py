"""Settings from files and the environment, as click defaults: command line first, then environment, then file, then
default."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource

from erfscope.core.request.option import COMPUTATION, OF_EACH
from erfscope.core.request.settings import OPTIONS
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.show.command.console import File
from erfscope.show.command.options import pair

#: Entries of the configuration that are not options.
SECTIONS = ("check",)
#: Key under which a context keeps the name of its settings file.
SOURCE = "erfscope.settings"
#: Key under which it keeps the models of the report that ``--config`` names.
MODELS = "erfscope.models"
#: Options that are no settings.
_PERSONAL = (
    "help",
    "help_all",
    "version",
    "force",
    "resume",
    "config",
    "verbose",
    "update",
    "only",
)
#: Sources that belong to the user who starts a command.
FROM_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
#: Options that let code run: they stand on the command line only, in no settings file and no variable.
CLI_ONLY = ("unsafe_load",)


def find(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest ``erfscope.toml``, or ``pyproject.toml`` with a ``[tool.erfscope]`` table, from ``start`` upwards.

    Raises:
        ErfscopeError: a file is no TOML.
    """
    for folder in (start, *start.parents):
        for file in (folder / "erfscope.toml", folder / "pyproject.toml"):
            if file.is_file() and (table := _table(file)) is not None:
                return file, table
    return None


def _table(file: Path) -> dict[str, Any] | None:
    """The settings in a TOML file; None for a ``pyproject.toml`` without any."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ErfscopeError(f"cannot read the settings in {file.name}: {str(error)[:120]}; correct the file") from error
    if file.name != "pyproject.toml":
        return found
    tools = found.get("tool", {})
    table = tools.get("erfscope") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ErfscopeError(f"tool.erfscope in {file.name} is {table!r}; it must be a table, [tool.erfscope]")
    return table


def take_from(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Take the settings of the file that ``--config`` names, a stored report or a TOML file, and no others of files.

    The settings of a report are those that it was measured with; its models hold if the command line names none.
    """
    if value is None or context.resilient_parsing:
        return
    source, group = Path(value), context.find_root().command
    assert isinstance(group, click.Group)
    if source.suffix.lower() == ".toml":
        table = _table(source) or {}
    else:
        table, context.meta[MODELS] = _table_of_report(source)
    context.default_map = defaults(table, group, source)[str(context.info_name)]
    context.meta[SOURCE] = source.name


def _table_of_report(source: Path) -> tuple[dict[str, Any], list[str]]:
    """The settings of a stored report as a settings file has them, and its models as the command line has them."""
    from erfscope.adapters.sources.sources import split_layer
    from erfscope.core.answer.storage.files import read
    from erfscope.core.answer.storage.writing import REPORT

    if source.is_dir() and not (source / REPORT).is_file():
        raise ErfscopeError(f"{source} holds a run that has not ended; continue it with --resume -o {source} first")
    report = read(source)
    settings = {name: value for name, value in report.settings.items() if value is not None}
    if "transform" in settings:
        raise ErfscopeError(f"the images of {source} went through a Python program's transform, which is no setting")
    size = settings.get("input_size")
    if isinstance(size, list) and not any(isinstance(side, list | str) for side in size):
        settings["input_size"] = [size]
    names = {*OPTIONS} - {"unsafe_load", "label"}
    table = {name: _joined(value) for name, value in settings.items() if name in names}
    # The name of an inserted block follows the label of its host.
    labels = {row.label.partition(" + ")[0]: row.model for row in report if "of" not in settings}
    own = {name: table.pop(name) for name in OF_EACH if isinstance(table.get(name), dict)}
    layers = {
        label: layer if isinstance(layer, str) else ",".join(layer)
        for label, layer in own.get("layer", {}).items()
        if layer
    }
    labels = {label: f"{spec}@{layers[label]}" if label in layers else spec for label, spec in labels.items()}
    table |= {"compare": {"checkpoint": own["checkpoint"]}} if "checkpoint" in own else {}
    return table, [spec if label == split_layer(spec)[0] else f"{label}={spec}" for label, spec in labels.items()]


def _joined(value: Any) -> Any:
    """A value with its pairs of numbers written as on the command line, 192x256."""
    return (
        ["x".join(map(str, item)) if isinstance(item, list) else item for item in value]
        if isinstance(value, list)
        else value
    )


def asked_models(given: Sequence[str]) -> Sequence[str]:
    """The models on the command line, or those of the report that the settings are from."""
    context: Any = click.get_current_context()
    found: Sequence[str] = given or context.meta.get(MODELS, ())
    return found


def refuse_code() -> None:
    """Refuse code that a settings file or a report names for the running command, and its command line or a variable
    does not.

    Raises:
        ErfscopeError: the file names a factory, a block by its class, text for the function that builds the model (of a
            report any arguments of it), or with --unsafe-load a checkpoint or a model's file.
    """
    context: Any = click.get_current_context()
    for name, value in _from_file(context).items():
        for text in value if isinstance(value, list | tuple) else [value]:
            if _may_run(name, text, context):
                what = "model" if name == "of" else name.replace("_", " ")
                said = f"{context.meta[SOURCE]} asks for the {what} {text}, which may run code"
                raise ErfscopeError(f"{said}; if you trust it, name it on the command line too")


def _from_file(context: click.Context) -> dict[str, Any]:
    """The models and the options of a command that a settings file or a report has set."""
    asked = context.params
    models = [] if asked.get("model") or asked.get("models") else context.meta.get(MODELS, [])
    source = {name: context.get_parameter_source(name) for name in asked}
    return {"model": models} | {name: asked[name] for name in asked if source[name] is ParameterSource.DEFAULT_MAP}


def _may_run(name: str, text: Any, context: click.Context) -> bool:
    """Whether this value of an option lets code run."""
    unsafe = bool(context.params.get("unsafe_load"))
    match name:
        case "model" | "of":
            from erfscope.adapters import split_label
            from erfscope.adapters.sources.kinds import kind_of

            return unsafe or kind_of(split_label(text)[1]).runs_code
        case "checkpoint":
            return unsafe
        case "insert":
            from erfscope.adapters.edits import parse_edits

            return any(":" in getattr(request, "block", "") for request in parse_edits(text))
        case "model_kwargs":
            return MODELS in context.meta or not _is_plain(pair(text)[1])
    return False


def _is_plain(value: Any) -> bool:
    """Whether a value is of numbers alone: text may be the name of a file or a class."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float)


def defaults(table: Mapping[str, Any], group: click.Group, source: Path) -> dict[str, dict[str, Any]]:
    """A ``default_map``: flat keys for every command that has the option, overridden by the command's own table.

    Args:
        table: The settings; keys are options' names, with hyphens or underscores.
        group: The commands; the table of one of another package is read where that is called.
        source: The file, for errors.

    Raises:
        ErfscopeError: a key is no option, or a value is no setting.
    """
    context: Any = click.get_current_context()
    known = group.list_commands(context)
    for name in known:
        # Those of erfscope are imported by it.
        group.get_command(context, name)
    names = {name: named_options(command) for name, command in group.commands.items()}
    everything = sorted({name for options in names.values() for name in options})
    flat: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for raw, value in table.items():
        key = raw.replace("-", "_")
        if key in SECTIONS:
            continue
        if isinstance(value, dict) and raw in names:
            own[raw] = {name.replace("-", "_"): setting for name, setting in value.items()}
            for name in own[raw]:
                if name not in names[raw]:
                    raise unknown("setting", name, names[raw], where=f"[{raw}] of {source.name}", limit=40)
        elif key in everything:
            flat[key] = value
        elif not isinstance(value, dict) or raw not in known:
            raise unknown("setting", raw, [*everything, *known], where=source.name, limit=40)
    return {command: _merged(options, flat, own.get(command, {}), source) for command, options in names.items()}


def named_options(command: click.Command) -> dict[str, click.Option]:
    """Every long name of every option, with underscores -> the option."""
    found = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _PERSONAL:
            for text in parameter.opts:
                if text.startswith("--"):
                    found[text.removeprefix("--").replace("-", "_")] = parameter
    return found


def name_variables(name: str, command: click.Command) -> None:
    """Let ERFSCOPE_<COMMAND>_<OPTION> set each option, or ERFSCOPE_<OPTION> for all commands, if it names no variable
    itself; options of :data:`CLI_ONLY` refuse that."""
    prefixes = (f"ERFSCOPE_{name.upper().replace('-', '_')}", "ERFSCOPE")
    found = named_options(command)
    for option in {id(option): option for option in found.values()}.values():
        names = [text.upper() for text, other in found.items() if other is option]
        option.envvar = option.envvar or [f"{prefix}_{text}" for prefix in prefixes for text in names]
        if option.name in CLI_ONLY:
            option.callback = _from_command_line


def _from_command_line(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value of an option of the command line only.

    Raises:
        ErfscopeError: a variable has set it.
    """
    if context.get_parameter_source(str(option.name)) is ParameterSource.ENVIRONMENT:
        raise _cli_only_error(option, next(name for name in option.envvar or () if os.environ.get(name)))
    return value


def _cli_only_error(option: click.Parameter, where: str) -> ErfscopeError:
    return ErfscopeError(
        f"{where}: {option.opts[0]} stands on the command line only, since it lets files run code; remove it there"
    )


def _merged(
    options: Mapping[str, click.Option], flat: Mapping[str, Any], own: Mapping[str, Any], source: Path
) -> dict[str, Any]:
    """One command's settings by parameter; the command's own win over the flat ones."""
    chosen: dict[str, Any] = {}
    for table in (flat, own):
        for name, value in table.items():
            if name not in options:
                continue
            parameter = str(options[name].name)
            if parameter == "json" and "format" in options:
                # The two are one setting: a command's own format wins over a flat json.
                chosen |= {"format": "json"} if value else {}
            else:
                value = setting(options[name], value, f"{name} in {source.name}")
                chosen[parameter] = beside(source, options[name], value)
    return chosen


def setting(option: click.Option, value: Any, where: str) -> Any:
    """A value as click takes it: a list is a repeated option or a comma list, a table repeats K=V, of images with
    each item of a list for K.

    Raises:
        ErfscopeError: a date, a table or a truth value for an option that takes none, or an option of the command
            line only.
    """
    if option.name in CLI_ONLY:
        raise _cli_only_error(option, where)
    if isinstance(value, dict):
        is_images = option.name == "images"
        listed = {key: item if is_images and isinstance(item, list) else [item] for key, item in value.items()}
        value = [f"{key}={each}" for key, item in listed.items() for each in item] if option.multiple else value
    if isinstance(value, datetime.date | datetime.time):
        raise ErfscopeError(
            f"{where} is the date or time {value}, and no option takes one; write text in quotes, a number or a list"
        )
    if isinstance(value, dict) or isinstance(value, bool) != option.is_flag:
        wanted = "true or false" if option.is_flag else "text, a number or a list"
        raise ErfscopeError(f"{where} is {value!r}; it must be {wanted}")
    if option.multiple:
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


def beside(source: Path, option: click.Option, value: Any) -> Any:
    """The value of a setting; paths in a settings file are relative to it, those in a stored report to where it was
    made."""
    folder = source.resolve().parent
    if not isinstance(option.type, File) or source.suffix.lower() != ".toml" or folder == Path.cwd():
        return value
    return [_joined_to(folder, each) for each in value] if isinstance(value, list) else _joined_to(folder, str(value))


def from_here(option: click.Option, value: Any) -> Any:
    """The value of an option of the command line that holds wherever the command goes on."""
    if not isinstance(option.type, File) or value is None:
        return value
    here = Path.cwd()
    return tuple(_joined_to(here, each) for each in value) if option.multiple else _joined_to(here, str(value))


def _joined_to(folder: Path, text: str) -> str:
    """A path in a folder, that behind INPUT= too; one that is absolute, or an address, as it is."""
    name, equals, path = text.rpartition("=")
    is_named = bool(equals) and name.isidentifier()
    path = path if is_named else text
    joined = path if "://" in path else str(folder / path)
    return f"{name}={joined}" if is_named else joined


#: The option ``--config``.
option = click.option(
    "--config",
    type=File(),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=take_from,
    help="Stored report or .toml file with settings, read in place of pyproject.toml; the command line wins.",
    panel=COMPUTATION,
)
