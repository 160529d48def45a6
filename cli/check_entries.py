"""The checks that a settings file lists, as requests; options of the command line hold for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from erfscope.cli import config
from erfscope.cli.options import by_source, keywords, source_of
from erfscope.errors import ErfscopeError, unknown

if TYPE_CHECKING:
    from erfscope.api.gate import Request

#: Keys of a check that are not options of a measurement.
KEYS = ("name", "model", "tolerances", "halo")


def listed(only: Sequence[str]) -> tuple[list[dict[str, Any]], Path | None]:
    """The checks of the settings file that are asked for, and that file; none if there is no file.

    Args:
        only: Names; () for all.

    Raises:
        ErfscopeError: a check is no table, has no model or the name of another; or a name does not exist.
    """
    found = config.find(Path.cwd())
    if found is None:
        return [], None
    source, table = found
    given = table.get("check", [])
    head = "[[check]]" if source.name == "erfscope.toml" else "[[tool.erfscope.check]]"
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise ErfscopeError(f"check in {source.name} must be a list of tables; write {head} above each")
    entries: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(given, start=1):
        model = entry.get("model")
        if not isinstance(model, str) or not model:
            raise ErfscopeError(
                f'{head} number {number} of {source.name} names no model; add one, such as model = "resnet18"'
            )
        name = entry.get("name", model)
        if not isinstance(name, str) or not name.strip():
            raise ErfscopeError(f"{head} number {number} of {source.name} is called {name!r}; a name is text")
        if name in entries:
            raise ErfscopeError(f"two checks of {source.name} are called {name!r}; give each a name of its own")
        entries[name] = {**entry, "name": name}
    for name in only:
        if name not in entries:
            raise unknown("check", name, entries, where=source.name)
    return [entry for name, entry in entries.items() if not only or name in only], source


def from_file(
    entry: Mapping[str, Any], source: Path, given: Mapping[str, Any], fail_on: Sequence[str], accept: str
) -> Request:
    """The request that one check of a settings file makes.

    Args:
        entry: The check.
        source: The file.
        given: Every option of a measurement, as click read it.
        fail_on: The values of ``--fail-on``.
        accept: The command that accepts the findings.

    Raises:
        ErfscopeError: a key is no option, or a value does not fit its option.
    """
    from erfscope.api.gate import Request

    where = f"check {entry['name']!r} of {source.name}"
    own, (_, general, *from_user) = _options(entry, given, where), by_source(given).values()
    words = entry.get("tolerances", {})
    if not isinstance(words, dict):
        raise ErfscopeError(f"tolerances of {where} is {words!r}; write {{ r50 = '-5%' }}")
    options = keywords(general, own, *from_user)
    return Request(
        name=entry["name"],
        model=entry["model"],
        tolerances=_tolerances(words, fail_on),
        options=options,  # type: ignore[arg-type]
        accept=accept,
        longest_halo=_longest(entry.get("halo"), where),
    )


def _longest(halo: object, where: str) -> int | None:
    """The longest halo that a check allows; None where it guards none."""
    if halo is None:
        return None
    found = re.fullmatch(r"<=\s*(\d+)", halo.strip()) if isinstance(halo, str) else None
    if found is None:
        raise ErfscopeError(f'halo of {where} is {halo!r}; write the longest that is allowed, such as "<= 96"')
    return int(found[1])


def from_line(model: str, given: Mapping[str, Any], fail_on: Sequence[str], accept: str) -> Request:
    """The request that a MODEL on the command line makes."""
    from erfscope.adapters import split_label
    from erfscope.api.gate import Request

    label, spec = split_label(model)
    _, *asked = by_source(given).values()
    options, allowed = keywords(*asked), _tolerances({}, fail_on)
    return Request(name=label or spec, model=model, tolerances=allowed, options=options, accept=accept)  # type: ignore[arg-type]


def _tolerances(words: Mapping[str, object], fail_on: Sequence[str]) -> dict[str, object] | None:
    """The tolerances of a check: ``--fail-on`` wins over the check, the check over a settings file's ``fail-on``."""
    from erfscope.gate import from_pairs

    asked = from_pairs(fail_on)
    general = source_of("fail_on") is ParameterSource.DEFAULT_MAP
    return ({**asked, **words} if general else {**words, **asked}) or None


def _options(entry: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A check's own options, read as click reads those of the command line."""
    context: Any = click.get_current_context()
    options = {text: option for text, option in config.named_options(context.command).items() if option.name in given}
    found: dict[str, Any] = {}
    for raw, value in entry.items():
        key = raw.replace("-", "_")
        if key in KEYS:
            continue
        if key not in options:
            raise unknown("setting", raw, [*KEYS, *options], where=where, limit=40)
        option = options[key]
        try:
            found[str(option.name)] = option.type_cast_value(
                context, config.setting(option, value, f"{raw} of {where}")
            )
        except click.BadParameter as error:
            raise ErfscopeError(f"{raw} of {where}: {error.message}") from error
    return found
