"""The limit that a check sets to the halo of tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from erfscope.api.models import Model
from erfscope.api.tile import tile
from erfscope.errors import ErfscopeError
from erfscope.gate.structure import StructureChange
from erfscope.gate.verdict import Verdict
from erfscope.options.keywords import Building, Options
from erfscope.view.tiles import halo_text


def with_halo(verdict: Verdict, model: Model, options: Options, longest: int) -> Verdict:
    """The verdict, failed where tiles need a longer halo or are impossible: a limit that no baseline changes.

    Args:
        verdict: That on everything else.
        model: As for :func:`erfscope.tile`.
        options: Those of the check; the halo is that of its ``layer``, or of what the model returns.
        longest: Input pixels on any side.
    """
    given: dict[str, Any] = {**options}
    building = {name: given[name] for name in Building.__annotations__ if name in given and name != "alpha"}
    word: Literal["fail", "cannot tell"] = "fail"
    try:
        plan = tile(model, layer=given.get("layer"), **building)
        if plan.possible and max(map(max, plan.halo)) <= longest:
            return verdict
        obtained = halo_text(plan.halo) if plan.possible else f"no tiles are possible: {plan.blockers[0]}"
    except ErfscopeError as error:
        word, obtained = "cannot tell", str(error)
    change = StructureChange(what="halo", obtained=obtained, expected=f"at most {longest} px", verdict=word)
    failed = "fail" in (word, verdict.word)
    cause = verdict.cause if verdict.word == "fail" else "halo too long" if word == "fail" else "halo unknown"
    shape = (*verdict.structure, change)
    return replace(verdict, word="fail" if failed else "cannot tell", cause=cause, structure=shape)
