"""The ``erfscope`` command: its help, its settings, and every error as one line and an exit code."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import rich_click as click
from click.core import ParameterSource
from click.exceptions import Exit, NoSuchOption

from erfscope.cli.commands import PANELS, Commands
from erfscope.cli.interruption import SIGNALLED, Interrupted
from erfscope.core.values.errors import ErfscopeError, MeasurementError, loop_text, naming_flags
from erfscope.core.values.printable import printable
from erfscope.show.command import config
from erfscope.show.command.console import ShortHelp, complain, discard_output

click.rich_click.TEXT_MARKUP = "markdown"
click.rich_click.PADDING_HELPTEXT_FIRST_LINE = (0, 0, 1, 0)
click.rich_click.SHOW_ARGUMENTS = False
click.rich_click.MAX_WIDTH = 120

# The backslash is Markdown's line break.
EPILOG = "\\\n\n".join(
    (
        "Exit codes: 0 all ok, 1 a check or a claim of a study failed, 2 nothing could be started, "
        "3 a result cannot be used.",
        "What a command does, and its options: `erfscope COMMAND --help`; all of analyze and compare: `--help-all`.",
        'Completion at TAB, in bash: `eval "$(_ERFSCOPE_COMPLETE=bash_source erfscope)"`; in zsh write zsh_source, in '
        "fish `_ERFSCOPE_COMPLETE=fish_source erfscope | source`.",
        "Settings come from the command line, else from variables such as ERFSCOPE_ANALYZE_SEED or ERFSCOPE_SEED, else "
        "from the file that --config names, else from erfscope.toml or [tool.erfscope] in pyproject.toml.",
    )
)


#: Commands that the ranks of a torchrun share.
SHARED = ("analyze", "compare")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
    panels=[click.RichCommandPanel(panel, commands=[*commands]) for panel, commands in PANELS.items()],
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda context, _, wanted: _show_version(context) if wanted else None,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """How far does a vision model really look?

    `erfscope analyze resnet18 --image x.png` measures the effective receptive field (ERF) of the central unit of the
    model's last map."""
    if os.environ.get("RANK", "0") != "0" and context.invoked_subcommand not in SHARED:
        from erfscope.core.run.parallel import is_member

        if is_member():
            # Rank 0 alone runs commands that ranks cannot share.
            context.exit(0)
    found = config.find(Path.cwd())
    if found is not None:
        source, table = found
        context.default_map = config.defaults(table, cli, source)
        context.meta[config.SOURCE] = source.name


def _show_version(context: click.Context) -> None:
    from erfscope.cli.version import version_text

    click.echo(f"erfscope, version {version_text()}")
    context.exit()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 all ok, 1 a check or a claim failed, 2 nothing could be started, 3 a result
    cannot be used."""
    given = sys.argv[1:] if arguments is None else arguments
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # What is being written is taken away, as after Ctrl-C.
        signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A narrow encoding must not make a ± fail.
            stream.reconfigure(errors="replace")
    sys.exit(_run(given))


def _terminate(number: int, _: FrameType | None) -> None:
    raise Interrupted(SIGNALLED + number)


def _run(given: Sequence[str]) -> int:
    """Run a command and return the exit code; every exception becomes one line on stderr."""
    try:
        with naming_flags():
            status = cli.main(args=list(given), prog_name="erfscope", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        discard_output()
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            discard_output()
            return 0
        if isinstance(stop.code, str):
            complain(stop.code)
            return 1
        # Click's own: help without a command, and completion.
        return stop.code or 0
    except (click.Abort, KeyboardInterrupt) as stop:
        complain("interrupted")
        # Readers of zarr are cut off with tasks of theirs, of which asyncio would complain at the end.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        # Click raises an Abort while it handles a KeyboardInterrupt.
        cause = stop.__context__ if isinstance(stop, click.Abort) else stop
        return cause.code if isinstance(cause, Interrupted) else SIGNALLED + signal.SIGINT
    except BaseException as error:
        if _wants_traceback(given):
            print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr)
        text, status = _one_line(error)
        complain(text)
        return status


def _one_line(error: BaseException) -> tuple[str, int]:
    """The message for an exception, and the exit code."""
    if isinstance(error, click.ClickException):
        return _usage(error), 2
    if isinstance(error, ErfscopeError):
        return str(error), 3 if isinstance(error, MeasurementError) else 2
    if (text := loop_text(error)) is not None:
        return text, 2
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; try a smaller --input-size, --batch-size or --samples", 3
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "the working directory is no longer there; change to another folder", 2
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        # Every call of the system with such a name fails, wherever that is.
        return f"{str(error.filename)[:40]!r}... is longer than a name can be; choose another", 2
    from erfscope.core.system.model_errors import first_line, is_passing

    if is_passing(error):
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return (
            (
                f"{place}{getattr(error, 'strerror', None) or error}; nothing is wrong with the model: make room, and"
                " run it again"
            ),
            3,
        )

    return f"internal error, {first_line(error)}; run again with -v and report the traceback", 3


def _has_working_directory() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _usage(error: click.ClickException) -> str:
    """The message for an error of the argument parser, with the source of a value that is not on the command line."""
    text = error.format_message().rstrip(".")
    if isinstance(error, NoSuchOption) and error.option_name.replace("_", "-").startswith("--random"):
        return f"there is no {error.option_name}; write `--weights random`"
    context: click.Context | None = getattr(error, "ctx", None)
    if context is None:
        return text
    parameter: click.Parameter | None = getattr(error, "param", None)
    source = context.get_parameter_source(parameter.name) if parameter is not None and parameter.name else None
    if source is ParameterSource.DEFAULT_MAP:
        text += f" (set in {context.meta.get(config.SOURCE, 'the settings')})"
    elif source is ParameterSource.ENVIRONMENT:
        text += " (set in the environment)"
    if "unexpected extra argument" in text and any(
        suffix in text.lower() for suffix in (".jpg", ".jpeg", ".png", ".webp")
    ):
        return f"{text}; a shell takes a pattern apart, so quote it: --image 'photos/*.jpg'"
    every = "--help-all" if isinstance(context.command, ShortHelp) else "--help"
    return f"{text}{'' if text.endswith('?') else ';'} `{context.command_path} {every}` lists what can be asked for"


def _wants_traceback(given: Sequence[str]) -> bool:
    """Whether -v is among the arguments, alone or as in -qv: the parser may have failed before it knew."""
    return any(text == "--verbose" or re.fullmatch(r"-q*v[qv]*", text) for text in given)
