"""``erfscope check``: the CI gate."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from erfscope import adapters
from erfscope.core import ErfscopeError, unknown
from erfscope.show import command

if TYPE_CHECKING:
    from erfscope.apps.gate.checks import CheckRequest
    from erfscope.apps.gate.verdict import CheckAdvice

#: The panel of the gate's own options.
GATE = "Gate"
#: Options of a check, which gives the same numbers everywhere, measures no more than it guards, and is of a whole run.
ASKED = command.table(
    *(name for name in command.MEASURING if name not in ("shard", "halo")),
    measures="Measures to record besides those that are guarded.",
)
ASKED["device"] = replace(ASKED["device"], default="cpu")
ASKED["measures"] = replace(ASKED["measures"], default=None)
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
@click.argument("model", required=False, type=command.ModelName())
@click.option_panel(GATE)
@click.option(
    "--baseline",
    metavar="FILE",
    type=command.File(),
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
@command.options(ASKED)
@click.option(
    "--format",
    type=command.Text(words=SHOWN),
    metavar="NAME",
    default="rich",
    help=f"How the report is printed: {', '.join(SHOWN)}.",
)
@command.options({"json": command.OUTPUT_OPTIONS["json"]}, in_panels=False)
@click.option(
    "--artifacts",
    metavar="DIR",
    type=command.File(),
    help="Folder for the report, and for figures and maps of what did not pass.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print one line for each check and nothing else.")
@command.with_verbose
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

    Where the images of --samples do not decide, more are added, as far as the baseline has them (up to 16 times).

    Without MODEL, the checks are those that the settings list, each as `[[tool.erfscope.check]]` with a `name`, a
    `model`, `tolerances` and any option of `analyze`. Exit codes: 1 something changed, 3 inconclusive, or
    the baseline has just been created (0 with --allow-new)."""
    shown = _format(given.pop("format"), given.pop("json"))
    requests, folder = _requests(model, only, given, fail_on)

    with command.importing_torch(quiet=quiet):
        from erfscope.apps.gate.checks import check_all
    from erfscope.apps.gate.printing import deliver, store

    file = _baseline(baseline, folder)
    # A model's spec is relative to the settings that list it, and stays as it is written there.
    with command.progress(quiet) as bar, contextlib.chdir(folder or "."):
        for request in requests:
            request.options["progress"] = bar
        report = check_all(
            requests, baseline=file, update=update, missing="accept" if allow_new else None, trf_only=trf_only
        )
    # The exit code is that of the verdict even if the output is closed or figures cannot be written.
    with command.ignoring_closed_pipe():
        deliver(report, shown=shown, quiet=quiet)
    stored = artifacts is None or store(report, Path(artifacts))
    return 0 if exit_zero else report.exit_code or (0 if stored else 3)


def _requests(
    model: str | None, only: Sequence[str], options: dict[str, Any], fail_on: Sequence[str]
) -> tuple[list[CheckRequest], Path | None]:
    """The checks to make, and the folder of the settings that list them."""
    if model is not None:
        if only:
            raise ErfscopeError(
                "--only chooses among the checks that the settings list; leave it out, or leave MODEL out"
            )
        return [from_line(model, options, fail_on, _advice(None))], None
    entries, source = listed(only)
    if not entries or source is None:
        raise ErfscopeError(
            "nothing to check: name a MODEL, or list checks under [[tool.erfscope.check]] in pyproject.toml"
        )
    made = [from_file(entry, source, options, fail_on, _advice(entry["name"])) for entry in entries]
    return made, source.parent


def _baseline(given: str, folder: Path | None) -> Path:
    """The baseline file: beside the settings if they name it or list the checks."""
    if command.source_of("baseline") in command.config.FROM_USER or folder is None:
        return Path(given) if folder in (None, Path.cwd()) else Path.cwd() / given
    return folder / given


def _format(asked: str, as_json: bool) -> str:
    """The format to print in; one that a settings file names for all commands, and check lacks, is replaced by rich."""
    chosen = command.chosen_format(asked, as_json)
    if chosen in SHOWN:
        return chosen
    if chosen in command.FORMATS and command.source_of("format") is ParameterSource.DEFAULT_MAP:
        return "rich"
    raise ErfscopeError(f"a check has no format {asked!r}; there is: {', '.join(SHOWN)}")


def _advice(name: str | None) -> CheckAdvice:
    """What to do with what this command finds, for one of the listed checks or for MODEL."""
    from erfscope.apps.gate.verdict import CheckAdvice

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
    return CheckAdvice(
        accept=shlex.join(["erfscope", "check", *kept[:place], *chosen, *kept[place:]]),
        allow="`erfscope check --allow-new` adds new checks and lets them pass",
        keep="name this check (NAME=MODEL, or its name in the settings), or choose another --baseline",
    )


#: Keys of a check that are not options of a measurement.
KEYS = ("name", "model", "tolerances", "halo")


def listed(only: Sequence[str]) -> tuple[list[dict[str, Any]], Path | None]:
    """The checks of the settings file that are asked for, and that file; none if there is no file.

    Args:
        only: Names; () for all.

    Raises:
        ErfscopeError: a check is no table, has no model or the name of another; or a name does not exist.
    """
    found = command.config.find(Path.cwd())
    if found is None:
        return [], None
    source, table = found
    given = table.get("check", [])
    head = "[[check]]" if source.name == "erfscope.toml" else "[[tool.erfscope.check]]"
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise ErfscopeError(f"check in {source.name} must be a list of tables; write {head} above each")
    entries: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(given, start=1):
        model = entry.get("model")
        if not isinstance(model, str) or not model:
            raise ErfscopeError(
                f'{head} number {number} of {source.name} names no model; add one, such as model = "resnet18"'
            )
        name = entry.get("name", model)
        if not isinstance(name, str) or not name.strip():
            raise ErfscopeError(f"{head} number {number} of {source.name} is called {name!r}; a name is text")
        if name in entries:
            raise ErfscopeError(f"two checks of {source.name} are called {name!r}; give each a name of its own")
        entries[name] = {**entry, "name": name}
    for name in only:
        if name not in entries:
            raise unknown("check", name, entries, where=source.name)
    return [entry for name, entry in entries.items() if not only or name in only], source


def from_file(
    entry: Mapping[str, Any], source: Path, given: Mapping[str, Any], fail_on: Sequence[str], advice: CheckAdvice
) -> CheckRequest:
    """The request that one check of a settings file makes.

    Args:
        entry: The check.
        source: The file.
        given: Every option of a measurement, as click read it.
        fail_on: The values of ``--fail-on``.
        advice: What to do with the findings.

    Raises:
        ErfscopeError: a key is no option, or a value does not fit its option.
    """
    from erfscope.apps.gate.checks import CheckRequest

    where = f"check {entry['name']!r} of {source.name}"
    own = _options(entry, given, where)
    _, general, *from_user = command.by_source(given if source.parent == Path.cwd() else _from_here(given)).values()
    words = entry.get("tolerances", {})
    if not isinstance(words, dict):
        raise ErfscopeError(f"tolerances of {where} is {words!r}; write {{ r50 = '-5%' }}")
    options = command.keywords(general, own, *from_user)
    return CheckRequest(
        name=entry["name"],
        model=entry["model"],
        tolerances=_tolerances(words, fail_on),
        options=options,  # type: ignore[arg-type]
        advice=advice,
        longest_halo=_longest(entry.get("halo"), where),
    )


def _from_here(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the running command, whose paths hold in any folder."""
    context: Any = click.get_current_context()
    named = {str(option.name): option for option in command.config.named_options(context.command).values()}
    return {
        name: command.config.from_here(named[name], value) if name in named else value for name, value in given.items()
    }


def _longest(halo: object, where: str) -> int | None:
    """The longest halo that a check allows; None where it guards none."""
    if halo is None:
        return None
    found = re.fullmatch(r"<=\s*(\d+)", halo.strip()) if isinstance(halo, str) else None
    if found is None:
        raise ErfscopeError(f'halo of {where} is {halo!r}; write the longest that is allowed, such as "<= 96"')
    return int(found[1])


def from_line(model: str, given: Mapping[str, Any], fail_on: Sequence[str], advice: CheckAdvice) -> CheckRequest:
    """The request that a MODEL on the command line makes."""
    from erfscope.apps.gate.checks import CheckRequest

    label, spec = adapters.split_label(model)
    _, *asked = command.by_source(given).values()
    options, allowed = command.keywords(*asked), _tolerances({}, fail_on)
    return CheckRequest(name=label or spec, model=model, tolerances=allowed, options=options, advice=advice)  # type: ignore[arg-type]


def _tolerances(words: Mapping[str, object], fail_on: Sequence[str]) -> dict[str, object] | None:
    """The tolerances of a check: ``--fail-on`` wins over the check, the check over a settings file's ``fail-on``."""
    from erfscope.apps.gate.tolerance import from_pairs

    asked = from_pairs(fail_on)
    general = command.source_of("fail_on") is ParameterSource.DEFAULT_MAP
    return ({**asked, **words} if general else {**words, **asked}) or None


def _options(entry: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A check's own options, read as click reads those of the command line."""
    context: Any = click.get_current_context()
    options = {
        text: option for text, option in command.config.named_options(context.command).items() if option.name in given
    }
    found: dict[str, Any] = {}
    for raw, value in entry.items():
        key = raw.replace("-", "_")
        if key in KEYS:
            continue
        if key not in options:
            raise unknown("setting", raw, [*KEYS, *options], where=where, limit=40)
        option = options[key]
        try:
            asked = command.config.setting(option, value, f"{raw} of {where}")
            found[str(option.name)] = option.type_cast_value(context, asked)
        except click.BadParameter as error:
            raise ErfscopeError(f"{raw} of {where}: {error.message}") from error
    return found
