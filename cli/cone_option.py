"""The option ``--cone``, which was a flag once."""

from __future__ import annotations

from typing import Any

import rich_click as click

#: As in erfscope.settings, which takes long to import.
CONES = ("proved", "compare", "off")


class ConeWord(click.ParamType[Any]):
    """``proved``, ``compare`` or ``off``; settings files may also say true or false."""

    name = "word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word."""
        text = str(value).strip().lower()
        word = {"true": "proved", "1": "proved", "on": "proved", "yes": "proved", "false": "off", "0": "off", "no": "off"}.get(text, text)
        if word not in CONES:
            self.fail(f"{value!r} is none of {', '.join(CONES)}", param, ctx)
        return word


class ConeOption(click.RichOption):
    """``--cone WORD``, and ``--no-cone`` for ``--cone off``."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Also understand ``--no-cone``."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, ["--no-cone"], dest=self.name, action="store_const", const=CONES[-1])
