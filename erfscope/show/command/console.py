"""The terminal: streams, screens, and types and help of parameters."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import rich_click as click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from erfscope.core.values.errors import unknown
from erfscope.core.values.printable import between_words, one_line, printable
from erfscope.show.view.terminal.console import PlainConsole


class File(StringParamType):
    """Any text; a shell offers files and folders."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Leave it to the shell."""
        return [CompletionItem(incomplete, type="file")]


class Text(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on, and not before
    """Text that a function may read, or one of some words."""

    name = "text"

    def __init__(
        self, *, read: Callable[[str], Any] | None = None, words: Sequence[str] = (), is_closed: bool = False
    ) -> None:
        """Make a kind.

        Args:
            read: Text -> the value; a ValueError says what can be read.
            words: What a shell offers.
            is_closed: Whether there is nothing else.
        """
        self.read, self.words, self.is_closed = read or str, words, is_closed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, read."""
        if self.is_closed and value not in self.words:
            self.fail(str(unknown("value", str(value), self.words, limit=len(self.words))), param, ctx)
        try:
            return self.read(str(value)) if isinstance(value, str | int | float) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """The words that begin as the value does."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def seconds(text: str) -> float:
    """``90``, ``90s``, ``10m`` or ``2h`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no time; write 90, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def n_bytes(text: str) -> int:
    """``8GiB``, ``8G`` or ``500MB`` in bytes; all units are powers of 1024."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no size; write 8GiB or 500M")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


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


class Streams:
    """The command's own stdout."""

    def __init__(self) -> None:
        self._out: TextIO | None = None

    @property
    def out(self) -> TextIO:
        """The stream for results."""
        return self._out or sys.stdout

    @contextlib.contextmanager
    def redirecting_prints(self) -> Iterator[None]:
        """Inside the block ``print`` writes to stderr, and :attr:`out` stays the stdout."""
        before, self._out = self._out, self.out
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._out = before


streams = Streams()


#: Width of reports that go to a file or a pipe, unless COLUMNS says otherwise: wide enough for the first line of a
#: report.
PIPED_WIDTH = 110


class Screen(PlainConsole):
    """The terminal, or what stands in its place."""

    def __init__(self, *, plain: bool = False, stderr: bool = False) -> None:
        super().__init__(file=sys.stderr if stderr else streams.out, color_system=None if plain else "auto")
        #: Whether the width is known: of a terminal, or from COLUMNS.
        self.is_bounded = self.is_terminal or bool(os.environ.get("COLUMNS"))
        if not self.is_bounded:
            self.width = PIPED_WIDTH

    def print_line(self, text: str, *, style: str | None = None) -> None:
        """Print one line; where the width is bounded it is broken between words, and a path that is too long stays
        whole."""
        self.print(between_words(text, self.width) if self.is_bounded else text, style=style, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command: rich would redirect ``sys.stdout``, stderr while a command runs."""
        raise BrokenPipeError


def say(text: str) -> None:
    """Print a table or JSON as it is, but for control characters."""
    print(printable(text, keep="\n\t"), file=streams.out)


def print_json(document: object) -> None:
    """Print a document as JSON, and nothing else."""
    print(json.dumps(document, indent=1, allow_nan=False), file=streams.out)


def complain(text: str) -> None:
    """Print a message on stderr, one line, which a terminal breaks between words."""
    stream = sys.stderr
    # Without stderr the exit code alone reports it.
    with contextlib.suppress(OSError, ValueError):
        line = f"erfscope: {one_line(text)}"
        if stream.isatty():
            line = between_words(line, shutil.get_terminal_size().columns)
        print(line, file=stream)


@contextlib.contextmanager
def ignoring_closed_pipe() -> Iterator[None]:
    """Continue if the reader of the output has closed it, as in ``erfscope ... | head``: click and rich raise
    SystemExit then."""
    try:
        yield
        streams.out.flush()
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        discard_output()


def discard_output() -> None:
    """Discard what is still in the buffer: a closed output is no error."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), streams.out.fileno())


@contextlib.contextmanager
def importing_torch(*, quiet: bool = False) -> Iterator[None]:
    """Switch the garbage collector off while modules that need torch are imported for the first time, which a terminal
    shows unless it is to be ``quiet``."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    screen = Screen(stderr=True)
    shown = screen.status("loading PyTorch") if screen.is_terminal and not quiet else contextlib.nullcontext()
    gc.disable()
    try:
        with shown:
            yield
    finally:
        gc.enable()
