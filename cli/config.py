"""Settings from files and the environment, as click defaults: command line first, then environment, then file, then default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from erfscope.errors import ErfscopeError, unknown

#: Entries of the configuration that are not options.
SECTIONS = ("check",)
#: Options that make no sense as a setting.
_PERSONAL = ("help", "version", "force", "verbose")


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
            table = _read(shared).get("tool", {}).get("erfscope")
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
    names = {command: option_names(found) for command, found in group.commands.items()}
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
    return {command: _merged(options, flat, own.get(command, {})) for command, options in names.items()}


def option_names(command: click.Command) -> dict[str, str]:
    """Every name of every option, with underscores -> the parameter it sets."""
    found = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _PERSONAL:
            for text in (*parameter.opts, *parameter.secondary_opts):
                if text.startswith("--"):
                    found[text.removeprefix("--").replace("-", "_")] = str(parameter.name)
    return found


def name_variables(group: click.Group) -> None:
    """Let every option be set by ERFSCOPE_<COMMAND>_<OPTION>, or by ERFSCOPE_<OPTION> for all commands."""
    for name, command in group.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name not in _PERSONAL:
                longest = max((o for o in parameter.opts if o.startswith("--")), key=len, default=None)
                if longest is not None:
                    option = longest.removeprefix("--").replace("-", "_").upper()
                    parameter.envvar = [f"ERFSCOPE_{name.upper()}_{option}", f"ERFSCOPE_{option}"]


def _merged(options: Mapping[str, str], flat: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: value for name, value in flat.items() if name in options} | dict(own)
    return {options[name]: _text(value) for name, value in chosen.items()}


def _text(value: Any) -> Any:
    """A list means a comma list, as on the command line; a table means repeated K=V."""
    if isinstance(value, dict):
        return [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ErfscopeError(f"cannot read the settings in {file.name}: {str(error)[:120]}; mend the file") from error
