"""``--from report.json``: a stored report measured again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erfscope.cli.console.screen import complain
from erfscope.cli.options import OutputOptions, keywords, on_command_line
from erfscope.errors import ErfscopeError

if TYPE_CHECKING:
    from erfscope.api import Repeated
    from erfscope.results.report import Report

#: Exit code where the numbers are not what they were.
MOVED = 1


def repeated(stored: str, models: Sequence[str], wanted: OutputOptions, options: dict[str, Any]) -> int:
    """Measure a stored report again, print it, say what differs, and give the exit code: 1 where a number does.

    Args:
        stored: Where the report lies.
        models: Those of its models that are named again, and so may be code.
        wanted: What is to be printed and written.
        options: The others, as click has read them; those of the command line replace the report's.
    """
    from erfscope.cli.run.running import measured

    replaced = keywords({name: value for name, value in options.items() if on_command_line(name) and name != "verbose"})
    found: list[Repeated] = []

    def run(progress: Any, stop: Any, tell: Any, **more: Any) -> Report:
        from erfscope.api.repetition import measured_again, plan_of
        from erfscope.cli.run.output import check_figure
        from erfscope.parallel import current

        if "resume" in more:
            raise ErfscopeError("--from measures a report again, and --resume goes on with one; give one of them")
        plan = plan_of(stored, models, replaced)
        check_figure(wanted, {plan.models: plan.models} if isinstance(plan.models, str) else plan.models, plan.options)
        if current().rank == 0:
            # The report may be somebody else's: its reader sees what is built before it is.
            complain(f"--from {stored} {plan.text}")
        found.append(measured_again(plan, progress=progress, stop=stop, tell=tell))
        return found[0].report

    # Only what stands on the command line replaces what the report says.
    status = measured(run, wanted, {"verbose": options["verbose"], "measures": options["measures"]})
    if not found or status > 100:
        return status
    for text in found[0].differences:
        complain(f"differs: {text}")
    if found[0].is_same:
        complain(
            f"all numbers are those of {stored}" + (", to 0.2 %" if _is_coarse(found[0]) else ", to 1e-9, fits to 1e-6")
        )
    return status if found[0].is_same else MOVED


def _is_coarse(repeated: Repeated) -> bool:
    return any(result.dtype != "float64" for result in repeated.report)
