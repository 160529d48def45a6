"""``erfscope study``: theorems, figures and tables of the literature, reproduced."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import rich_click as click

from erfscope.core import ErfscopeError
from erfscope.show import command, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from erfscope.apps.lab.studies import Effort, StudyResult

#: As in erfscope.apps.lab.studies, which takes long to import.
STUDY_NAMES = (
    *("theorems", "luo-gaussian", "luo-growth", "luo-subsample-dilation", "luo-skip", "luo-dropout"),
    *("luo-nonlinearity", "luo-init", "luo-training", "correlations", "syncmnist", "sort-of-clevr", "padding"),
    *("gatv2-gradients", "attention-pooling", "trust", "trained"),
)
#: The words of --effort.
EFFORTS = ("quick", "full", "long")


@click.command()
@click.argument("name", required=False, type=command.Text(words=STUDY_NAMES))
@click.option("--list", "listing", is_flag=True, help="List the studies.")
@click.option(
    "--effort",
    type=command.Text(words=EFFORTS, is_closed=True),
    default="full",
    show_default=True,
    help="quick (less than a minute), full (at most ten), or long (trainings of hours; other studies run in full).",
)
@click.option("--show", is_flag=True, help="Show the result of a real run that is kept with erfscope; run nothing.")
@click.option(
    "--data",
    metavar="DIR",
    type=command.File(),
    help="The papers' own data set, or your images, for studies that take them (--list says which). Default: data made"
    " here.",
)
@click.option(
    "--cache",
    metavar="DIR",
    type=command.File(),
    help="Folder that keeps trained nets. Default: the user's cache folder.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="PATH",
    type=command.File(),
    help="Folder, or .json .csv .md .tex .png .svg .pdf; repeatable.",
)
@command.options({name: command.OUTPUT_OPTIONS[name] for name in ("format", "json", "force")}, in_panels=False)
@click.option("-q", "--quiet", is_flag=True, help="Print the conclusion and nothing else.")
@command.with_verbose
def study(
    name: str | None,
    listing: bool,
    effort: Effort,
    show: bool,
    data: str | None,
    cache: str | None,
    seed: int,
    output: tuple[str, ...],
    force: bool,
    quiet: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """Reproduce a study of the literature; `theorems` checks every closed form.

    Exit code 1 if a check failed.
    """
    chosen = command.chosen_format(given["format"], given["json"])
    if listing:
        return _list(chosen)
    if name is None:
        raise ErfscopeError(
            "no study was named; `erfscope study --list` shows them, and `erfscope study theorems` checks every closed"
            " form"
        )
    from erfscope.apps.lab.studies import check, kept_study, run
    from erfscope.apps.lab.studies.study import refuse_output

    check(name, data=data)
    for path in output:
        refuse_output(path, force=force)
    from platformdirs import user_cache_path

    kept = cache or user_cache_path("erfscope", appauthor=False) / "studies"
    if show:
        result = kept_study(name)
        if seed or effort != "full" or cache or data:
            raise ErfscopeError(
                f"--show prints the kept run of {name} ({result.effort}, seed {result.seed}) and runs nothing; leave"
                " out --show to run it with other options, or these options"
            )
    else:
        from erfscope import ErfWarning

        with (
            warnings.catch_warnings(record=True, action="always", category=ErfWarning) as said,
            command.progress(quiet, in_lines=effort == "long") as bar,
        ):
            options: dict[str, Any] = {"seed": seed, "effort": effort, "data": data}
            result = run(name, **options, cache=kept, progress=bar)
        for each in said:
            command.complain(str(each.message))
    for path in output:
        result.save(path, force=force)
    _print(result, chosen, output, quiet=quiet)
    return 0 if result.passed else 1


def _list(chosen: str) -> int:
    """Print the list of studies."""
    from erfscope.apps.lab.studies import STUDIES, kept_study
    from erfscope.show import Cell, Column, Table, Value, format_table, rows_of

    kept = {name: kept_study(name).conclusion.split(",")[0].rstrip(".").replace(" claims", "") for name in STUDIES}
    if chosen == "json":
        keys = ("name", "source", "shows", "seconds", "quick_seconds", "data")
        entries = STUDIES.values()
        command.print_json(
            [{**{key: getattr(entry, key) for key in keys}, "kept_run": kept[entry.name]} for entry in entries]
        )
        return 0
    # In a terminal two columns of sentences would be too narrow to be read: the source stands below what a study shows.
    is_rich = chosen == "rich"
    titles = ["study", "shows, and source" if is_rich else "shows", "seconds", "quick", "source", "kept run"]
    rows: list[list[Value]] = []
    for each in STUDIES.values():
        shows = f"{each.shows} (--data: {each.data})" if each.data else each.shows
        texts: list[Value] = [
            each.name,
            shows,
            str(each.seconds),
            str(each.quick_seconds),
            each.source,
            kept[each.name],
        ]
        if is_rich:
            texts[:2] = [Cell(text=each.name, below=kept[each.name]), Cell(text=shows, below=each.source)]
        rows.append(texts[:4] if is_rich else texts)
    columns = [
        Column(name=name, kind="number" if name in ("seconds", "quick") else "text", folds=name.startswith("shows"))
        for name in titles[: len(rows[0])]
    ]
    table = Table(columns=tuple(columns), rows=rows_of(rows))
    if is_rich:
        from erfscope.show import terminal

        command.Screen().print(terminal.TerminalTable(table, edged=True))
    else:
        command.say(format_table(table, chosen).rstrip("\n"))
    return 0


def _print(result: StudyResult, chosen: str, written: tuple[str, ...], *, quiet: bool) -> None:

    if chosen == "json":
        command.print_json(result.to_json())
    elif chosen in ("csv", "markdown", "latex"):
        command.say(result.text(format=chosen).rstrip("\n"))
    elif quiet:
        command.say(one_line(result.conclusion))
        return
    else:
        screen = command.Screen(plain=chosen == "plain")
        screen.print(study_view(result))
        for path in written:
            screen.print_line(f"wrote {path}", style="dim")
        return
    if not result.passed:
        command.complain(result.conclusion)


def study_view(result: StudyResult) -> RenderableType:
    """The table of a study, above it why not every claim is reproduced, and below it its claims with their verdicts and
    the answer."""
    from rich.console import Group
    from rich.text import Text

    from erfscope.apps.lab.studies import STUDIES
    from erfscope.show import terminal

    rows = terminal.TerminalTable(result.rows_table(result.columns, has_headings=True), edged=True)
    facts = [result.effort, f"seed {result.seed}", f"{result.seconds:.0f} s"]
    facts += [f"{name} {result.environment['versions'][name]}" for name in ("erfscope", "torch")]
    answer = Text(result.conclusion, style="bold" if result.passed else "bold red")
    claims = terminal.TerminalTable(result.claims_table(), edged=True)
    reason = STUDIES[result.study].explained(result)
    return Group(*([Text(reason)] if reason else []), rows, claims, answer, Text(", ".join(facts), style="dim"))
