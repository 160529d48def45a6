"""The limit that a check sets to the halo of tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from erfscope.api.models import Model
from erfscope.api.result_halo import halo_of
from erfscope.errors import ErfscopeError
from erfscope.gate.structure import StructureChange
from erfscope.gate.verdict import Verdict
from erfscope.options.keywords import Options, words
from erfscope.view.tiles import halo_text


def with_halo(verdict: Verdict, model: Model, options: Options, longest: int) -> Verdict:
    """The verdict, failed where tiles need a longer halo or are impossible: a limit that no baseline changes.

    Args:
        verdict: That on everything else.
        model: As for :func:`erfscope.tile`.
        options: Those of the check; the halo is that of its ``layer``, or of what the model returns.
        longest: Input pixels on any side.
    """
    word: Literal["fail", "cannot tell"] = "fail"
    try:
        halo = halo_of(model, options, words(options.get("layer"), "layer")[0])
        if not halo.blockers and max(map(max, halo.px)) <= longest:
            return verdict
        obtained = f"no tiles are possible: {halo.blockers[0]}" if halo.blockers else halo_text(halo.px)
    except ErfscopeError as error:
        word, obtained = "cannot tell", str(error)
    change = StructureChange(what="halo", obtained=obtained, expected=f"at most {longest} px", verdict=word)
    failed = "fail" in (word, verdict.word)
    cause = verdict.cause if verdict.word == "fail" else "halo too long" if word == "fail" else "halo unknown"
    shape = (*verdict.structure, change)
    return replace(verdict, word="fail" if failed else "cannot tell", cause=cause, structure=shape)
