"""Commands with so many options that ``--help`` shows the most common ones alone."""

from __future__ import annotations

from typing import Any

import rich_click as click

#: The options of a measurement that most people need.
COMMON = frozenset(
    {
        *("--layer", "--unit", "--convention", "--image", "--samples", "--weights"),
        *("--checkpoint", "--input-size", "--device", "--json", "--output", "--explain"),
    }
)
#: Shown besides, of options that one command has for itself.
OWN = frozenset({"--sort", "--help", "--help-all"})
_SHOWN = "erfscope.shown options"


class ShortHelp(click.RichCommand):
    """A command whose ``--help`` shows the options of :data:`COMMON`, and whose ``--help-all`` shows all."""

    def get_help(self, ctx: click.Context) -> str:
        """The help, of the common options unless all were asked for."""
        ctx.meta.setdefault(_SHOWN, COMMON | OWN)
        return super().get_help(ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters; while help is shown, of the options only those that it shows."""
        every, shown = super().get_params(ctx), ctx.meta.get(_SHOWN)
        return [
            each
            for each in every
            if shown is None or isinstance(each, click.Argument) or not shown.isdisjoint(each.opts)
        ]


def _all(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_SHOWN] = None
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def help_all(function: Any) -> Any:
    """The option ``--help-all``."""
    text = "Show every option, not only the common ones, and exit."
    return click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_all, help=text)(
        function
    )
