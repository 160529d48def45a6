"""Settings from files and the environment, as click defaults: command line first, then environment, then file, then
default."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource

from erfscope.errors import ErfscopeError, unknown

#: Entries of the configuration that are not options.
SECTIONS = ("check",)
#: Where a context keeps the name of the file that its settings are from.
SOURCE = "erfscope.options.settings"
#: Options that make no sense as a setting.
_PERSONAL = (
    "help",
    "help_all",
    "version",
    "force",
    "resume",
    "retry_failed",
    "from_report",
    "verbose",
    "update",
    "only",
)
#: Options that let code run. Whoever starts a command says them; a file that lies in a folder, or a variable, does not.
_SPOKEN = ("unsafe_load",)


def find(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest ``erfscope.toml``, or ``pyproject.toml`` with a ``[tool.erfscope]`` table, from ``start`` upwards.

    Raises:
        ErfscopeError: a file that is no TOML.
    """
    for folder in (start, *start.parents):
        own, shared = folder / "erfscope.toml", folder / "pyproject.toml"
        if own.is_file():
            return own, _read(own)
        if shared.is_file():
            tools = _read(shared).get("tool", {})
            table = tools.get("erfscope") if isinstance(tools, dict) else None
            if table is not None and not isinstance(table, dict):
                raise ErfscopeError(f"tool.erfscope in {shared.name} is {table!r}; it must be a table, [tool.erfscope]")
            if table is not None:
                return shared, table
    return None


def defaults(table: Mapping[str, Any], group: click.Group, source: Path) -> dict[str, dict[str, Any]]:
    """A ``default_map``: flat keys for every command that has the option, overridden by the command's own table.

    Args:
        table: The settings; keys are options' names, with hyphens or underscores.
        group: The commands.
        source: The file, for errors.

    Raises:
        ErfscopeError: a key that is no option, or a value that is no setting.
    """
    names = {command: named_options(found) for command, found in group.commands.items()}
    everything = sorted({name for options in names.values() for name in options})
    flat: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for raw, value in table.items():
        key = raw.replace("-", "_")
        if key in SECTIONS:
            continue
        if isinstance(value, dict) and raw in group.commands:
            own[raw] = {name.replace("-", "_"): setting for name, setting in value.items()}
            for name in own[raw]:
                if name not in names[raw]:
                    raise unknown("setting", name, names[raw], where=f"[{raw}] of {source.name}", limit=40)
        elif key in everything:
            flat[key] = value
        else:
            raise unknown("setting", raw, [*everything, *group.commands], where=source.name, limit=40)
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


def name_variables(group: click.Group) -> None:
    """Let every option be set by ERFSCOPE_<COMMAND>_<OPTION>, or by ERFSCOPE_<OPTION> for all commands; some have to
    refuse that."""
    for name, command in group.commands.items():
        found = named_options(command)
        for option in {id(option): option for option in found.values()}.values():
            names = [text.upper() for text, other in found.items() if other is option]
            option.envvar = [
                *(f"ERFSCOPE_{name.upper()}_{text}" for text in names),
                *(f"ERFSCOPE_{text}" for text in names),
            ]
            if option.name in _SPOKEN:
                option.callback = _from_command_line


def _from_command_line(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value of an option, if the command line has it.

    Raises:
        ErfscopeError: it is a variable's.
    """
    if context.get_parameter_source(str(option.name)) is ParameterSource.ENVIRONMENT:
        raise _not_spoken(option, next(name for name in option.envvar or () if os.environ.get(name)))
    return value


def _not_spoken(option: click.Parameter, where: str) -> ErfscopeError:
    return ErfscopeError(
        f"{where}: {option.opts[0]} stands on the command line only, since it lets files run code; take it out"
    )


def _merged(
    options: Mapping[str, click.Option], flat: Mapping[str, Any], own: Mapping[str, Any], source: Path
) -> dict[str, Any]:
    """One command's settings by parameter; the command's own win over the flat ones, under whatever name."""
    chosen: dict[str, Any] = {}
    for table in (flat, own):
        for name, value in table.items():
            if name not in options:
                continue
            parameter = str(options[name].name)
            if parameter == "as_json" and "format" in options:
                # The two are one setting, so that a command's own format can win over a flat json.
                chosen |= {"format_": "json"} if value else {}
            else:
                chosen[parameter] = setting(options[name], value, f"{name} in {source.name}")
    return chosen


def setting(option: click.Option, value: Any, where: str) -> Any:
    """A value as click takes it: a list is a repeated option or a comma list, a table repeats K=V.

    Raises:
        ErfscopeError: a date, a table or a truth value for an option that does not take it, or an option of the command
            line only.
    """
    if option.name in _SPOKEN:
        raise _not_spoken(option, where)
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()] if option.multiple else value
    if option.name == "cone" and isinstance(value, bool):  # as the option was a flag once
        return "true" if value else "false"
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


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ErfscopeError(f"cannot read the settings in {file.name}: {str(error)[:120]}; mend the file") from error
