"""The page of a report: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from erfscope.core.answer.convention import CONVENTIONS
from erfscope.core.answer.json_values import to_json
from erfscope.core.answer.measures import MEASURES
from erfscope.core.values.names import is_input
from erfscope.core.values.printable import name_pieces, plus, printable
from erfscope.show.view import drawings as charts
from erfscope.show.view import error_bars, sentences, words
from erfscope.show.view.cells import identity, provenance, share_text
from erfscope.show.view.depth import depth_sections
from erfscope.show.view.drawings import Drawing, Drawings
from erfscope.show.view.report_view import ReportView


def html(view: ReportView, drawings: Drawings, *, in_folder: bool = False) -> str:
    """A report as one self-contained page.

    Every number on it is the JSON's own: elements with ``data-json`` hold the JSON pointer to it in
    :meth:`erfscope.core.answer.report.Report.to_json`, and ``data-value`` the number at full precision beside its text.

    Args:
        view: What is shown.
        drawings: Its maps.
        in_folder: Whether the files of the maps are written beside the page.

    Returns:
        The page's text, to be written as UTF-8.
    """
    results = view.results
    used = dict.fromkeys(name for result in results for name in result.measures if name in MEASURES)
    text: str = template("page.html.j2").render(
        view=view,
        sentences=sentences,
        unranked=list(sentences.unranked(view)),
        drawings=drawings,
        in_folder=in_folder,
        ranges=charts.ranges(view.rows),
        profiles=charts.profiles(view.rows),
        depths=depth_sections(results) if drawings.depth else [],
        side_by_side=sum(drawn is not None for drawn in drawings.maps) > 1,
        conventions=[CONVENTIONS[name] for name in dict.fromkeys(r.convention for r in results) if name in CONVENTIONS],
        definitions=[name for name in MEASURES if name in used],
        facts=list(_settings(view)),
        **assets(_text("script.js")),
    )
    return text


def assets(script: str, more_style: str = "") -> dict[str, object]:
    """The style of pages with more of one page's own, its script, and the hash that lets this script run and no
    other."""
    script = script.strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = f"{_text('style.css').strip()}\n{more_style.strip()}".strip()
    return {"style": Markup(style), "script": Markup(script), "script_hash": digest}


#: What a formula is set by: marks of the text that it is written in, and HTML. One-letter variables alone have
#: subscripts, so that names of measures, such as sigma_major, stay as they are.
SETTING = (
    (r"\bsum_([a-z])\b", r"Σ<sub>\1</sub>"),
    (r"\bmean_([a-z])\b", r"mean<sub>\1</sub>"),
    (r"\bsum(?= p\b)", "Σ"),
    (r"\bsqrt(?=\()", "√"),
    (r"\b([A-Za-z])_([a-z]+)\b", r"<i>\1</i><sub>\2</sub>"),
    (r"\b([rc])0\b", r"<i>\1</i><sub>0</sub>"),
    (r"\bR2\b", "<i>R</i><sup>2</sup>"),
    (r"\^(\d)", r"<sup>\1</sup>"),
    (r"(?<![\w<>/&;'])([pdewgnkrcsyHWA])(?=[ ,;:.)(|<]|$)", r"<i>\1</i>"),
    (r"(?<=; )a(?=\))|(?<=\()a(?= \+)|(?<=\d)a\b|\ba(?= =)", "<i>a</i>"),
)


def formula(text: str) -> Markup:
    """A formula as HTML: variables in italics, subscripts, powers, and signs of sums and roots."""
    markup = str(escape(printable(text, keep="\n")))
    for pattern, setting in SETTING:
        markup = re.sub(pattern, setting, markup)
    return Markup(markup)


def with_formulas(text: str) -> Markup:
    """A sentence in which the formulas of conventions are set; names in it stay as they are."""
    known = {part for each in CONVENTIONS.values() for part in (each.readout_text, each.contribution_text)}
    pattern = "|".join(map(re.escape, (*sorted(known, key=len, reverse=True), "g_s^2")))
    parts = re.split(f"({pattern})", text)
    return Markup("").join(formula(part) if part in (*known, "g_s^2") else printable(part) for part in parts)


def coded(text: str) -> Markup:
    """A sentence in which names between backticks are set as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def breakable(name: str) -> Markup:
    """A name that a browser breaks after its marks, where it needs several lines."""
    return Markup("<wbr>").join(name_pieces(printable(name)))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("erfscope.show.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.globals |= {"words": words, "error_bars": error_bars, "identity": identity, "provenance": provenance}
    environment.globals |= {
        "MEASURES": MEASURES,
        "is_input": is_input,
        "share_text": share_text,
        "plus": plus,
        "drawing": charts,
    }
    environment.filters |= {"formula": formula, "with_formulas": with_formulas, "breakable": breakable, "coded": coded}
    return environment


def template(name: str) -> Any:
    """A template of the page."""
    return _environment().get_template(name)


def template_of(text: str) -> Any:
    """A template from the text of another page, which may import the parts of this one."""
    return _environment().from_string(text)


def _finalize(value: object) -> object:
    """Text as it goes onto the page: characters that turn the direction of what follows, or steer a terminal, become
    question marks."""
    return printable(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


def _text(name: str) -> str:
    return (files("erfscope.show.view") / "templates" / name).read_text(encoding="utf-8")


def _settings(view: ReportView) -> Iterator[tuple[str, str]]:
    """Settings of the run, and versions of its packages, as (name, text)."""
    environment = dict(to_json(view.report.environment))
    for package, version in (environment.pop("versions", None) or {}).items():
        if version is not None:
            yield package, str(version)
    yield from ((name, str(value)) for name, value in environment.items())
    for name, value in to_json(view.report.settings).items():
        if value is not None:
            yield name, ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def result_fragment(view: ReportView, maps: Sequence[Drawing | None], *, scale: str) -> str:
    """One result: its map with rings, and its sizes."""
    return str(template("result.html.j2").render(view=view, row=view.rows[0], drawn=maps[0], scale=scale))


def report_fragment(view: ReportView, maps: Sequence[Drawing | None], *, scale: str) -> str:
    """All results: the table, with a small map in each row."""
    return str(template("report.html.j2").render(view=view, maps=maps, scale=scale))
