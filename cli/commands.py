"""The commands of erfscope, and those that other packages add as entry points of the group ``erfscope.commands``.

To add one: its place in ``PANELS``, and a public function in ``erfscope/__init__.pyi`` that does the work. The help,
``docs/cli.md`` and settings files follow; in ``SHARED`` of ``main.py`` if the ranks of a ``torchrun`` share it."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import rich_click as click

from erfscope.core.values.errors import ErfscopeError
from erfscope.show.command import config
from erfscope.show.command.console import complain, streams
from erfscope.show.command.options import with_traceback

GROUP = "erfscope.commands"
#: Panel of the help -> command -> its place. It stands here and not in the metadata of the installation, which a
#: checkout lacks and an editable installation keeps as they were.
PANELS = {
    "Measure": {
        "analyze": "erfscope.cli.measure:analyze",
        "compare": "erfscope.cli.measure:compare",
        "explore": "erfscope.apps.explore.command:explore",
        "layers": "erfscope.cli.layers:layers",
        "advise": "erfscope.apps.advise.command:advise",
        "lam": "erfscope.apps.lam.command:lam",
        "tile": "erfscope.apps.tile.command:tile",
        "merge": "erfscope.cli.measure:merge",
    },
    "Guard": {"check": "erfscope.apps.gate.command:check"},
    "Science": {"study": "erfscope.apps.lab.command:study"},
    "Help": {"models": "erfscope.apps.atlas.command:models", "doctor": "erfscope.cli.doctor:doctor"},
}
#: The commands of erfscope.
OWN = {name: EntryPoint(name, place, GROUP) for panel in PANELS.values() for name, place in panel.items()}


@functools.cache
def others() -> dict[str, EntryPoint]:
    """The commands of other packages; one whose name is taken is left out, with a line on stderr."""
    commands: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in OWN and entry.name not in commands:
            commands[entry.name] = entry
        # A shell that asks for completion shows stderr too.
        elif "_ERFSCOPE_COMPLETE" not in os.environ:
            owner = package(commands[entry.name]) if entry.name in commands else "erfscope"
            complain(f"the command {entry.name} of {package(entry)} is ignored: {owner} has one of that name")
    return commands


def package(entry: EntryPoint) -> str:
    """The package of a command, with its version; "" for one of erfscope."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""


def import_command(entry: EntryPoint) -> click.Command:
    """Import a command.

    Raises:
        ErfscopeError: that of another package cannot be imported.
    """
    try:
        command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.value} is no click command")
    except (Exception, SystemExit) as error:
        from erfscope.core.system.model_errors import first_line

        if not entry.dist:
            raise
        why = f"cannot import the command {entry.name} of {package(entry)}: {first_line(error)}"
        raise ErfscopeError(f"{why}; update or uninstall that package") from error
    return command


#: The panel of the help for commands of other packages.
OTHERS = "Other packages"


class Commands(click.RichGroup):
    """The commands. One of another package is imported only if it is called, and shown as a line that names the
    package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return [*OWN, *others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, or a line about one."""
        if cmd_name in OWN and cmd_name not in self.commands:
            self._import(OWN[cmd_name])
        if cmd_name in self.commands or cmd_name not in others():
            return self.commands.get(cmd_name)
        return click.RichCommand(name=cmd_name, help=f"from {package(others()[cmd_name])}")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; without any show the help, as of what could not be started, in all releases of click."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        """Write the help, with a panel for the commands of other packages."""
        self.panels = [each for each in self.panels if each.name != OTHERS]
        if names := [*others()]:
            self.add_panel(click.RichCommandPanel(OTHERS, commands=names))
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command that is called; a name like none of theirs is taken for a model."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            if near:
                raise click.UsageError(f"No such command {name!r}. Did you mean {near[0]!r}?", ctx)
            raise click.UsageError(f"No such command {name!r}; did you mean `erfscope analyze {name}`?")
        if name not in self.commands and name in others():
            try:
                self._import(others()[name])
            except ErfscopeError:
                # A shell that asks for completion is offered no options then.
                if not ctx.resilient_parsing:
                    raise
        return super().resolve_command(ctx, args)

    def _import(self, entry: EntryPoint) -> None:
        """Import a command; settings hold for it as for all."""
        command = import_command(entry)
        if entry.dist and not any("-v" in each.opts for each in command.params):
            with_traceback(command)
        if command.callback is not None:
            command.callback = _guarded(command.callback, is_own=not entry.dist)
        config.name_variables(entry.name, command)
        self.add_command(command, entry.name)


def _guarded(callback: Callable[..., Any], *, is_own: bool) -> Callable[..., Any]:
    """A command that refuses code of a settings file; the stdout of erfscope's own commands holds results alone."""

    @functools.wraps(callback)
    def run(*args: Any, **options: Any) -> Any:
        config.refuse_code()
        if not is_own:
            return callback(*args, **options)
        try:
            with streams.redirecting_prints():
                return callback(*args, **options)
        except SystemExit as stop:
            # Click and rich turn a broken pipe into one; any other comes from a model's own code.
            if isinstance(stop.__context__, BrokenPipeError):
                raise
            complain(f"the model's code called sys.exit({stop.code!r}), so there is no result; remove that call")
            return 3

    return run
