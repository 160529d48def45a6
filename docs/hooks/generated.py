"""Parts of pages that the code itself prints: ``<!-- generated: NAME -->`` in a page becomes what ``PARTS[NAME]``
returns.

Run by MkDocs, so that formulas, conventions, options and fields cannot fall behind the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from typing import Any

import rich_click as click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from rich_click.rich_panel import construct_panels

import erfscope
from erfscope.attribution.convention import CONVENTIONS, Convention
from erfscope.cli.main import cli
from erfscope.figures.canvas import figure_bytes
from erfscope.figures.kinds import KINDS
from erfscope.measures import MEASURES, Measure
from erfscope.measures.sizes import SIZED
from erfscope.options.settings import OPTIONS, Options
from erfscope.results.report import Report
from erfscope.storage.writing import FORMATS
from erfscope.studies import STUDIES, kept_study
from erfscope.view.table import markdown_text
from erfscope.view.words import WIDER

MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", flags=re.MULTILINE)
#: Figures in the pages, by file name -> kind.
PICTURES = {"figure-panel": "panel", "figure-depth": "depth"}
UNITS = {"px": "px", "px2": "px²", "deg": "degrees", "": "no unit"}
RATIO = {"radius": "r / S", "width": "w / S", "sigma": "s / S", "area": "a / S²"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """MkDocs' hook: the figures, drawn when the site is built."""
    for name, kind in PICTURES.items():
        drawn = figure_bytes(example(kind).figure(kind=kind, colours="own"), ".png")
        files.append(File.generated(config, f"{name}.png", content=drawn))
    return files


def example(kind: str) -> Report:
    """Small models with seeded weights and images, as in the page's own commands."""
    common: Options = {"weights": "random", "samples": 4}
    if kind == "depth":
        return erfscope.sweep("test_resnet", layer="stages", **common)
    return erfscope.compare(["test_resnet", "test_efficientnet"], input_size=160, **common)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: the page with its generated parts."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """A page with its generated parts.

    Raises:
        PluginError: a part that does not exist.
    """

    def part(found: re.Match[str]) -> str:
        if found[1] not in PARTS:
            raise PluginError(f"there is no generated part {found[1]!r}; there is: {', '.join(PARTS)}")
        return PARTS[found[1]]()

    return MARK.sub(part, markdown)


def measures() -> str:
    """Every measure: a table to choose from, then each with its formula."""
    rows = [
        f"| [`{m.name}`](#{m.name}) | {m.kind} | {UNITS[m.unit]} | {WIDER[m.wider]} | {_error(m)} |"
        for m in MEASURES.values()
    ]
    head = ["| measure | kind | unit | direction | error bar |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, "", *(line for measure in MEASURES.values() for line in _measure(measure))])


def _measure(measure: Measure) -> Iterator[str]:
    facts = [UNITS[measure.unit], measure.kind, WIDER[measure.wider]]
    if measure.kind in SIZED:
        facts.append(f"`of_input` and `of_trf` are {RATIO[measure.kind]}")
    yield from (f"### `{measure.name}` {{ #{measure.name} }}", "", f"`{measure.formula}`\n{{ .formula }}", "")
    yield from (
        f"{'; '.join(facts)}. Error bar: {_error(measure)}. Source: {measure.source}.",
        "",
        f"*Not for* {measure.not_for}.",
        "",
    )


def _error(measure: Measure) -> str:
    return "jackknife" if measure.has_se else "none"


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


def commands() -> str:
    """Every command: how it is called and what it does."""
    return "\n".join(line for name, command in cli.commands.items() for line in _command(name, command))


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.RichContext(command, info_name=f"erfscope {name}")
    arguments = " ".join(command.collect_usage_pieces(context))
    yield from (f"### erfscope {name}", "", f"    erfscope {name} {arguments}", "", _paragraphs(command.help or ""), "")


def _options_of(command: click.Command, context: click.Context) -> Iterator[click.Option]:
    """The options of a command, in the order of its help."""
    names = {text: each for each in command.get_params(context) if isinstance(each, click.Option) for text in each.opts}
    names |= {str(option.name): option for option in names.values()}
    for panel in construct_panels(command, context, context.make_formatter()):
        yield from (names[text] for text in panel.objects if text in names)


def _option(option: click.Option, context: click.Context) -> str:
    """The names of an option and its value, as they are written."""
    names = ", ".join(f"`{text}`" for text in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} `{option.make_metavar(context)}`"


def _said(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context, call=False)
    return f"{option.help or ''}{_default(default) if option.show_default and not option.is_flag else ''}"


def _default(value: object) -> str:
    return "" if value is None or value is False else f" Default: `{value}`."


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))


def options() -> str:
    """Every option and keyword, once; where commands say different things of an option, a row for each of them."""
    head = ["| keyword | type | option | commands | what it does |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(line for uses in _uses().values() for line in uses)])


def _uses() -> dict[str, list[str]]:
    """The rows of the table of options, by the keyword, or else by how the option is written."""
    commands_of: dict[tuple[str, str, str], list[str]] = {}
    for command_name, command in cli.commands.items():
        context = click.RichContext(command, info_name=f"erfscope {command_name}")
        for option in _options_of(command, context):
            written = _option(option, context)
            is_keyword = f"--{option.name}".replace("_", "-") in option.opts and option.name in OPTIONS
            key = (str(option.name) if is_keyword else written, written, _said(option, context))
            commands_of.setdefault(key, []).append(command_name)
    uses: dict[str, list[tuple[str, str, str]]] = {name: [] for name in OPTIONS}
    for (name, written, said), users in commands_of.items():
        uses.setdefault(name, []).append((written, ", ".join(users), said))
    return {name: [*_rows(name, of_name)] for name, of_name in uses.items()}


def _rows(name: str, uses: list[tuple[str, str, str]]) -> Iterator[str]:
    """A row for each use; the first one says what Python takes."""
    first, *others = uses or [("", "", "")]
    keyword, kind, said = "", "", first[2]
    if name in OPTIONS:
        each = OPTIONS[name]
        keyword, kind = f"`{name}`", f"`{each.accepts}`"
        has_own_text = bool(uses) and each.option.text not in said
        python = " ".join(filter(None, (each.option.text if has_own_text else "", each.option.in_python)))
        said = f"{said or each.option.text + _default(each.default)}{python and f' In Python: {python}'}"
    for cells in ((keyword, kind, *first[:2], said), *(("", "", *other) for other in others)):
        yield f"| {' | '.join(cells)} |"


def fields() -> str:
    """Every field of a report's JSON, from its schema."""
    schema = json.loads(
        (resources.files("erfscope") / "storage" / "schema" / "report-1.json").read_text(encoding="utf-8")
    )
    rows = [f"| `{name}` | {kind} |" for name, kind in _fields(_resolved(schema, schema["$defs"]), "")]
    return "\n".join(["| field | type |", "|---|---|", *rows])


def _resolved(schema: Any, defs: dict[str, Any]) -> Any:
    """A schema with what it refers to in the place of the references."""
    if isinstance(schema, list):
        return [_resolved(each, defs) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {**schema, **defs[schema["$ref"].removeprefix("#/$defs/")]} if "$ref" in schema else schema
    return {name: _resolved(inner, defs) for name, inner in whole.items() if name not in ("$ref", "$defs")}


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{prefix}{name}", _type(inner)
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
    """Rows for every file that a report can be written to; suffixes that hold the same share one."""
    found: dict[str, list[str]] = {}
    for suffix, each in FORMATS.items():
        found.setdefault(each.holds, []).append(f"`{suffix}`")
    return "\n".join(f"| {', '.join(names)} | {holds} |" for holds, names in found.items())


def kinds() -> str:
    """Every kind of figure: what it shows and needs."""
    rows = [f"| `{kind.name}` | {kind.shows} | {kind.needs} |" for kind in KINDS]
    return "\n".join(["| kind | shows | needs |", "|---|---|---|", *rows])


def _figure(name: str) -> str:
    return f"![What --figure {PICTURES[name]} draws]({name}.png)"


def studies() -> str:
    """Every study that can be run."""
    rows = [f"| `{s.name}` | {s.shows} | {s.source} | {s.seconds} | {s.quick_seconds} |" for s in STUDIES.values()]
    return "\n".join(["| study | shows | source | full, s | quick, s |", "|---|---|---|---:|---:|", *rows])


def verdicts() -> str:
    """Every claim of the runs that the package keeps, in the order of the studies, and how each run was made."""
    rows = []
    for name in STUDIES:
        kept = kept_study(name)
        versions = ", ".join(f"{each} {kept.environment['versions'][each]}" for each in ("erfscope", "torch"))
        made = f"{kept.effort}, seed {kept.seed}, {kept.seconds:.0f} s ({versions})"
        for number, each in enumerate(kept.claims):
            texts = (f"`{name}`" if number == 0 else "", each.claim, each.published, each.ours, each.verdict)
            cells = [texts[0], *(markdown_text(text) for text in texts[1:]), made if number == 0 else ""]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| study | claim | published | ours | verdict | run |", "|---|---|---|---|---|---|", *rows])


PARTS: dict[str, Callable[[], str]] = {
    "measures": measures,
    "conventions": conventions,
    "commands": commands,
    "options": options,
    "report-fields": fields,
    "studies": studies,
    "verdicts": verdicts,
    "file-formats": formats,
    "figure-kinds": kinds,
    **{name: partial(_figure, name) for name in PICTURES},
}
