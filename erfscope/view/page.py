"""The page of a report: one file that needs nothing else, and reaches for nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from erfscope.attribution.convention import CONVENTIONS
from erfscope.measures import MEASURES
from erfscope.printable import printable
from erfscope.results.json_values import plain
from erfscope.view import charts, explanation, headline, words
from erfscope.view.drawings import Drawings
from erfscope.view.report_view import ReportView


def html(view: ReportView, drawings: Drawings) -> str:
    """A report as one self-contained page.

    Every number on it is the JSON's own: elements with ``data-json`` hold the JSON pointer to it in
    :meth:`erfscope.results.report.Report.to_json`, and ``data-value`` the number at full precision beside its text.

    Args:
        view: What is shown.
        drawings: Its maps.

    Returns:
        The page's text, to be written as UTF-8.
    """
    results = view.results
    used = dict.fromkeys(name for result in results for name in result.measures if name in MEASURES)
    text: str = template("page.html.j2").render(
        view=view,
        headline=headline,
        explanation=explanation,
        unranked=list(headline.unranked(view)),
        drawings=drawings,
        ranges=charts.ranges(view.rows),
        profiles=charts.profiles(view.rows),
        side_by_side=sum(drawn is not None for drawn in drawings.maps) > 1,
        conventions=[CONVENTIONS[name] for name in dict.fromkeys(r.convention for r in results) if name in CONVENTIONS],
        definitions=[name for name in MEASURES if name in used],
        facts=list(_settings(view)),
        **_assets(),
    )
    return text


def _assets() -> dict[str, object]:
    """Style and script, which are files of this package, and the hash that lets this script run and no other."""
    script = _text("script.js").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(_text("style.css").strip()), "script": Markup(script), "script_hash": digest}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("erfscope.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.globals |= {"words": words, "MEASURES": MEASURES, "drawing": charts}
    return environment


def template(name: str) -> Any:
    """A template of the page."""
    return _environment().get_template(name)


def _finalize(value: object) -> object:
    """Text as it goes onto the page: characters that turn the direction of what follows, or steer a terminal, become
    question marks."""
    return printable(value, keep="\n") if isinstance(value, str) and not isinstance(value, Markup) else value


def _text(name: str) -> str:
    return (files("erfscope.view") / "templates" / name).read_text(encoding="utf-8")


def _settings(view: ReportView) -> Iterator[tuple[str, str]]:
    """What was asked for, and what it was measured with."""
    environment = dict(plain(view.report.environment))
    for package, version in (environment.pop("versions", None) or {}).items():
        if version is not None:
            yield package, str(version)
    yield from ((name, str(value)) for name, value in environment.items())
    for name, value in plain(view.report.settings).items():
        if value is not None:
            yield name, ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
