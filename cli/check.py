"""``erfscope check``: the CI gate."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from erfscope.cli.console.param_types import File, Text
from erfscope.cli.options import FORMATS, OUTPUT_OPTIONS, chosen_format, one_value, options, source_of, with_verbose
from erfscope.cli.run.known_names import ModelName
from erfscope.errors import ErfscopeError
from erfscope.options.settings import OPTIONS

if TYPE_CHECKING:
    from erfscope.api.gate import Request

#: The panel of the gate's own options.
GATE = "Gate"
#: Options of a check, which gives the same numbers everywhere, measures no more than it guards, and is of a whole run.
ASKED = one_value({name: each for name, each in OPTIONS.items() if name not in ("shard", "halo")})
ASKED["device"] = replace(OPTIONS["device"], default="cpu")
ASKED["measures"] = replace(
    OPTIONS["measures"],
    default=None,
    option=replace(OPTIONS["measures"].option, help="Measures to record besides those that are guarded."),
)
SHOWN = ("rich", "plain", "json", "markdown", "github")
#: Key under which a context keeps the arguments as they were given.
ARGUMENTS = "erfscope.arguments"
#: Arguments that the accepting command does without, since they change nothing that is measured: flags, and options
#: with a value.
_FLAGS = ("--exit-zero", "--allow-new", "--json", "-q", "--quiet", "-v", "--verbose")
_VALUED = ("--format", "--artifacts")


class _Remembering(click.RichCommand):
    """A command that keeps its arguments, to print the command that accepts its findings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=_Remembering)
@click.argument("model", required=False, type=ModelName())
@click.option_panel(GATE)
@click.option(
    "--baseline",
    metavar="FILE",
    type=File(),
    default="erf-baseline.json",
    show_default=True,
    help="File to compare with.",
    panel=GATE,
)
@click.option("--update", is_flag=True, help="Accept what is found and write it into the baseline.", panel=GATE)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="MEASURE=T",
    help="Tolerance: -5% guards against a narrower ERF, +5% against a wider one, 5% against both; repeatable."
    " Default: -5%, or 1% if weights and structure are those of the baseline.",
    panel=GATE,
)
@click.option(
    "--trf-only",
    is_flag=True,
    help="Compare only the structure: shapes, strides, centres, theoretical receptive fields (TRFs). Needs no weights.",
    panel=GATE,
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Make only this one of the checks that the settings list; repeatable.",
    panel=GATE,
)
@click.option(
    "--allow-new", is_flag=True, help="Add checks that the baseline lacks to it, and let them pass.", panel=GATE
)
@click.option("--exit-zero", is_flag=True, help="Exit with 0 also if something changed.", panel=GATE)
@options(ASKED)
@click.option(
    "--format",
    type=Text(words=SHOWN),
    metavar="NAME",
    default="rich",
    help=f"How the report is printed: {', '.join(SHOWN)}.",
)
@options({"json": OUTPUT_OPTIONS["json"]}, in_panels=False)
@click.option(
    "--artifacts",
    metavar="DIR",
    type=File(),
    help="Folder for the report, and for figures and maps of what did not pass.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print one line for each check and nothing else.")
@with_verbose
def check(
    model: str | None,
    baseline: str,
    update: bool,
    fail_on: tuple[str, ...],
    trf_only: bool,
    only: tuple[str, ...],
    allow_new: bool,
    exit_zero: bool,
    artifacts: str | None,
    quiet: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """Compare ERFs with a committed baseline: did one shrink?

    Without MODEL, the checks are those that the settings list, each as `[[tool.erfscope.check]]` with a `name`, a
    `model`, `tolerances` and any option of `analyze`. Exit codes: 1 something changed, 3 inconclusive, or
    the baseline has just been created (0 with --allow-new)."""
    shown = _format(given.pop("format"), given.pop("json"))
    requests, folder = _requests(model, only, given, fail_on)
    from erfscope.cli.run.startup import importing_torch

    with importing_torch():
        from erfscope.api.gate import check_all
    from erfscope.cli.console.screen import ignoring_closed_pipe
    from erfscope.cli.run.output import progress
    from erfscope.cli.views.check_view import deliver, store

    with progress(quiet) as bar:
        for request in requests:
            request.options["progress"] = bar
        file = _baseline(baseline, folder)
        report = check_all(
            requests, baseline=file, update=update, missing="accept" if allow_new else None, trf_only=trf_only
        )
    # The exit code is that of the verdict even if the output is closed or figures cannot be written.
    with ignoring_closed_pipe():
        deliver(report, shown=shown, quiet=quiet)
    stored = artifacts is None or store(report, Path(artifacts))
    return 0 if exit_zero else report.exit_code or (0 if stored else 3)


def _requests(
    model: str | None, only: Sequence[str], options: dict[str, Any], fail_on: Sequence[str]
) -> tuple[list[Request], Path | None]:
    """The checks to make, and the folder of the settings that list them."""
    from erfscope.cli.check_entries import from_file, from_line, listed

    if model is not None:
        if only:
            raise ErfscopeError(
                "--only chooses among the checks that the settings list; leave it out, or leave MODEL out"
            )
        return [from_line(model, options, fail_on, _accepting(None))], None
    entries, source = listed(only)
    if not entries or source is None:
        raise ErfscopeError(
            "nothing to check: name a MODEL, or list checks under [[tool.erfscope.check]] in pyproject.toml"
        )
    made = [from_file(entry, source, options, fail_on, _accepting(entry["name"])) for entry in entries]
    return made, source.parent


def _baseline(given: str, folder: Path | None) -> Path:
    """The baseline file: beside the settings if they name it or list the checks."""
    if source_of("baseline") in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT) or folder is None:
        return Path(given)
    return folder / given


def _format(asked: str, as_json: bool) -> str:
    """The format to print in; one that a settings file names for all commands, and check lacks, is replaced by rich."""
    chosen = chosen_format(asked, as_json)
    if chosen in SHOWN:
        return chosen
    if chosen in FORMATS and source_of("format") is ParameterSource.DEFAULT_MAP:
        return "rich"
    raise ErfscopeError(f"a check has no format {asked!r}; there is: {', '.join(SHOWN)}")


def _accepting(name: str | None) -> str:
    """The command that accepts what this one finds, for one of the listed checks or for MODEL."""
    context: Any = click.get_current_context()
    given = iter(context.meta[ARGUMENTS])
    kept: list[str] = []
    for text in given:
        if text in _VALUED or text == "--only":
            next(given, None)
        elif text not in (*_FLAGS, "--update") and not text.startswith(
            tuple(f"{option}=" for option in (*_VALUED, "--only"))
        ):
            kept.append(text)
    chosen = [*([] if name is None else ["--only", name]), "--update"]
    # Words after -- are arguments, not options.
    place = kept.index("--") if "--" in kept else len(kept)
    return shlex.join(["erfscope", "check", *kept[:place], *chosen, *kept[place:]])
