"""The ``erfscope`` command. Commands import torch only when they run."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import rich_click as click
from click.exceptions import Exit

import erfscope
from erfscope.cli import config
from erfscope.cli.analyze import analyze
from erfscope.cli.compare import compare
from erfscope.cli.doctor import doctor
from erfscope.cli.layers import layers
from erfscope.cli.models import models
from erfscope.errors import ErfscopeError, MeasurementError

click.rich_click.TEXT_MARKUP = "markdown"
click.rich_click.SHOW_ARGUMENTS = True
click.rich_click.MAX_WIDTH = 120


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(erfscope.__version__, prog_name="erfscope")
@click.command_panel("Measure", commands=["analyze", "compare", "layers"])
@click.command_panel("Help", commands=["models", "doctor"])
@click.pass_context
def cli(context: click.Context) -> None:
    """How far does a vision model really look?

    `erfscope analyze resnet18 --image x.png` measures the effective receptive field (ERF) of the central unit of the model's last map.
    """
    found = config.find(Path.cwd())
    if found is not None:
        source, table = found
        context.default_map = config.defaults(table, cli, source)


for command in (analyze, compare, layers, models, doctor):
    cli.add_command(command)
config.name_variables(cli)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 all ok, 2 nothing could be started, 3 at least one result cannot be used."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        status = cli.main(args=given, prog_name="erfscope", standalone_mode=False)
    except Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        status = 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `erfscope ... | head`; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except ErfscopeError as error:
        if {"-v", "--verbose"} & set(given):
            traceback.print_exc()
        _complain(str(error))
        status = 3 if isinstance(error, MeasurementError) else 2
    except Exception as error:  # a fault of ours: still one line, with the way to the rest
        if {"-v", "--verbose"} & set(given):
            traceback.print_exc()
        _complain(f"internal error, {type(error).__name__}: {error}; run again with -v and report the traceback")
        status = 3
    sys.exit(status if isinstance(status, int) else 0)


def _complain(text: str) -> None:
    """One line on stderr; control characters in names must not reach the terminal."""
    line = " ".join(text.split())
    print(f"erfscope: {''.join(c if c.isprintable() else '?' for c in line)}", file=sys.stderr)
