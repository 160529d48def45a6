"""Write the tables of the pages and of ``docs/tables`` that the code itself prints: ``python docs/hooks/generated.py``.

In a page, what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is what ``PARTS[NAME]`` returns;
``docs/tables/NAME.csv`` has the rows that ``TABLES[NAME]`` returns. ``tests/test_docs.py`` compares both with the code.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any

import rich_click as click
from field_comments import comment_above, without_roles

import erfscope
from erfscope import CONVENTIONS, MEASURES, Convention
from erfscope.apps.lab.studies import STUDIES, kept_study
from erfscope.cli.commands import OWN, import_command
from erfscope.core.answer.measures import SHOWN
from erfscope.core.answer.measures.sizes import SIZED
from erfscope.core.answer.storage.writing import FORMATS
from erfscope.core.request.settings import OPTIONS
from erfscope.show.figures.kinds import KINDS
from erfscope.show.view.words import WIDER

DOCS = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(?=<!-- end -->)", flags=re.DOTALL)
#: A public name of the pages on Python, which the site replaces by its documentation.
PUBLIC = re.compile(r"^::: erfscope\.([\w.]+)$", flags=re.MULTILINE)
UNITS = {"px": "px", "px2": "px²", "deg": "degrees", "": "no unit"}
RATIO = {"radius": "r / S", "width": "w / S", "sigma": "s / S", "area": "a / S²"}
Rows = Iterator[tuple[str, ...]]


def filled(markdown: str) -> str:
    """A page with its generated parts."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n", markdown)


def written(rows: Rows) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def expected() -> dict[Path, str]:
    """The text of every page and every table, as the code has it."""
    pages = {path: filled(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
    return pages | {DOCS / "tables" / f"{name}.csv": written(rows()) for name, rows in TABLES.items()}


def write() -> None:
    """Write them."""
    for path, text in expected().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _markdown(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def shown_measures() -> str:
    """The measures that every table shows, with their formulas."""
    formulas = {name: MEASURES[name].formula.replace("|", "\\|") for name in SHOWN}
    rows = [(f"`{name}`", f"`{text}`", UNITS[MEASURES[name].unit]) for name, text in formulas.items()]
    return _markdown(("measure", "formula", "unit"), rows)


def measures() -> Rows:
    """Every measure."""
    yield "measure", "formula", "kind", "unit", "with a larger ERF", "of_input, of_trf", "error", "not for", "source"
    for m in MEASURES.values():
        ratio = RATIO[m.kind] if m.kind in SIZED else ""
        error = "jackknife" if m.has_se else "none"
        yield m.name, m.formula, m.kind, UNITS[m.unit], WIDER[m.wider], ratio, error, m.not_for, m.source


def names() -> str:
    """What each public name of the page on Python is, in the order of the page."""
    named = PUBLIC.findall((DOCS / "api.md").read_text(encoding="utf-8"))
    rows = [(f"[`{_short(name)}`](#erfscope.{name})", _first_sentence(name)) for name in named]
    return _markdown(("name", "what it is"), rows)


def face() -> Rows:
    """What each name of the face is, in the order of its page."""
    yield "name", "what it is"
    for name in PUBLIC.findall((DOCS / "core.md").read_text(encoding="utf-8")):
        yield name.removeprefix("core."), _first_sentence(name)


def _short(name: str) -> str:
    """A name as it is imported: of the package where that has it, and of the face as its page imports it."""
    last = name.rpartition(".")[2]
    return last if last in erfscope.__all__ or name == f"core.{last}" else name


def _first_sentence(name: str) -> str:
    value, last = erfscope, name.rpartition(".")[2]
    for part in (name if name == f"core.{last}" else _short(name)).split("."):
        value = getattr(value, part)
    if isinstance(value, dict | str | GenericAlias | UnionType):
        if isinstance(value, dict):
            owner = inspect.getmodule(next(iter(value.values())))
        else:
            stub = (resources.files("erfscope.core") / "__init__.pyi").read_text(encoding="utf-8")
            owner = importlib.import_module(re.search(rf"from ([\w.]+) import {last} as", stub)[1])
        lines = inspect.getsource(owner).splitlines()
        text = comment_above(lines, next(n for n, line in enumerate(lines, 1) if re.match(rf"{last}\b.* = ", line)))
    else:
        text = inspect.getdoc(value) or ""
    whole = " ".join(without_roles(text).split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z])", whole)[0].rstrip(":").replace("|", "\\|")


def conventions() -> str:
    """Every convention with its formulas."""
    return "\n".join(line for convention in CONVENTIONS.values() for line in _convention(convention))


def _convention(convention: Convention) -> Iterator[str]:
    images = (
        "each image's map is divided by its total first"
        if convention.per_image
        else "raw: an image with large gradients weighs more"
    )
    yield from (f"### `{convention.name}`", "")
    yield (
        "* readout at the unit:"
        f" `{convention.readout_text}`{', fresh signs for every draw' if convention.random else ''}"
    )
    yield f"* contribution of a cell: `{convention.contribution_text}`"
    yield from (
        f"* average over images: {images}",
        f"* the map is: {convention.scale}",
        f"* source: {convention.source}",
    )
    yield from (f"* *not for* {convention.not_for}", "")


def _commands() -> list[tuple[str, click.Command]]:
    return [(name, import_command(entry)) for name, entry in OWN.items()]


def commands() -> str:
    """Every command and what it does."""
    rows = [(f"`{name}`", _paragraphs(each.help or "").split("\n\n")[0]) for name, each in _commands()]
    return _markdown(("command", "what it does"), rows)


def _option(option: click.Option, context: click.Context) -> str:
    """The names of an option and its value, as they are written."""
    names = ", ".join((*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {option.make_metavar(context)}"


def _said(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context, call=False)
    return f"{option.help or ''}{_default(default) if option.show_default and not option.is_flag else ''}"


def _default(value: object) -> str:
    return "" if value is None or value is False else f" Default: `{value}`."


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))


def options() -> Rows:
    """Every option and keyword, once; where commands say different things of an option, a row for each of them."""
    yield "keyword", "type", "option", "commands", "what it does"
    for uses in _uses().values():
        yield from uses


def _uses() -> dict[str, list[tuple[str, ...]]]:
    """The rows of the table of options, by the keyword, or else by how the option is written."""
    commands_of: dict[tuple[str, str, str], list[str]] = {}
    for command_name, command in _commands():
        context = click.RichContext(command, info_name=f"erfscope {command_name}")
        for option in (each for each in command.params if isinstance(each, click.Option)):
            written = _option(option, context)
            is_keyword = f"--{option.name}".replace("_", "-") in option.opts and option.name in OPTIONS
            key = (str(option.name) if is_keyword else written, written, _said(option, context))
            commands_of.setdefault(key, []).append(command_name)
    uses: dict[str, list[tuple[str, str, str]]] = {name: [] for name in OPTIONS}
    for (name, written, said), users in commands_of.items():
        uses.setdefault(name, []).append((written, ", ".join(users), said))
    return {name: [*_rows(name, of_name)] for name, of_name in uses.items()}


def _rows(name: str, uses: list[tuple[str, str, str]]) -> Rows:
    """A row for each use; the first one says what Python takes."""
    first, *others = uses or [("", "", "")]
    keyword, kind, said = "", "", first[2]
    if name in OPTIONS:
        each = OPTIONS[name]
        keyword, kind = name, each.accepts
        has_own_text = bool(uses) and each.option.text not in said
        python = " ".join(filter(None, (each.option.text if has_own_text else "", each.option.in_python)))
        said = f"{said or each.option.text + _default(each.default)}{python and f' In Python: {python}'}"
    yield keyword, kind, *first[:2], said
    yield from ((keyword, kind, *other) for other in others)


def fields() -> Rows:
    """Every field of a report's JSON, from its schema."""
    text = (resources.files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    yield "field", "type", "what it is"
    yield from _fields(_resolved(schema, schema["$defs"]), "")


def _resolved(schema: Any, defs: dict[str, Any]) -> Any:
    """A schema with what it refers to in the place of the references."""
    if isinstance(schema, list):
        return [_resolved(each, defs) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {**schema, **defs[schema["$ref"].removeprefix("#/$defs/")]} if "$ref" in schema else schema
    return {name: _resolved(inner, defs) for name, inner in whole.items() if name not in ("$ref", "$defs")}


def _fields(schema: dict[str, Any], prefix: str) -> Rows:
    for name, inner in schema.get("properties", {}).items():
        yield f"{prefix}{name}", _type(inner), inner.get("description", "")
        for each in inner.get("anyOf", [inner]):
            yield from _fields(each, f"{prefix}{name}.")
            if isinstance(each.get("items"), dict):  # of a tuple there are no further items
                yield from _fields(each["items"], f"{prefix}{name}[].")
            if isinstance(each.get("additionalProperties"), dict):
                yield from _fields(each["additionalProperties"], f"{prefix}{name}.NAME.")


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return ", ".join("null" if word is None else f'"{word}"' for word in schema.get("enum", [schema.get("const")]))
    words = schema.get("type", "any")
    text = " or ".join(words) if isinstance(words, list) else words
    items = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
    if items is not None and "properties" not in items:
        return f"{text} of {_type(items)}"
    return text


def formats() -> str:
    """Every file that a report can be written to; suffixes that hold the same share a row."""
    found: dict[str, list[str]] = {}
    for suffix, each in FORMATS.items():
        found.setdefault(each.holds, []).append(f"`{suffix}`")
    return _markdown(("suffix", "holds"), [(", ".join(names), holds) for holds, names in found.items()])


def kinds() -> str:
    """Every kind of figure: what it shows and needs."""
    return _markdown(("kind", "shows", "needs"), [(f"`{kind.name}`", kind.shows, kind.needs) for kind in KINDS])


def studies() -> str:
    """Every study that can be run."""
    rows = [(f"`{s.name}`", s.shows, str(s.seconds), str(s.quick_seconds)) for s in STUDIES.values()]
    return _markdown(("study", "shows", "full, s", "quick, s"), rows)


def verdicts() -> Rows:
    """Every claim of the runs that the package keeps, in the order of the studies, and how each run was made."""
    yield "study", "claim", "published", "ours", "verdict", "run", "source"
    for name, study in STUDIES.items():
        kept = kept_study(name)
        versions = ", ".join(f"{each} {kept.environment['versions'][each]}" for each in ("erfscope", "torch"))
        made = f"{kept.effort}, seed {kept.seed}, {kept.seconds:.0f} s ({versions})"
        for each in kept.claims:
            yield name, each.claim, each.published, each.ours, each.verdict, made, study.source


#: The parts of pages.
PARTS: dict[str, Callable[[], str]] = {
    "shown-measures": shown_measures,
    "conventions": conventions,
    "commands": commands,
    "studies": studies,
    "file-formats": formats,
    "figure-kinds": kinds,
    "names": names,
}
#: The files of ``docs/tables``.
TABLES: dict[str, Callable[[], Rows]] = {
    "face": face,
    "measures": measures,
    "options": options,
    "report_fields": fields,
    "studies": verdicts,
}


if __name__ == "__main__":
    write()
