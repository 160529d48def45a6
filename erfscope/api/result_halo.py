"""The halo of tiles that results hold, and that a check limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from erfscope.adapters.weights.checkpoint_files import Saved
from erfscope.api.models import Model
from erfscope.api.tile import plan_of
from erfscope.errors import ErfscopeError
from erfscope.gate.structure import StructureChange
from erfscope.gate.verdict import Verdict
from erfscope.options.request import Request
from erfscope.results.result import Halo, Result
from erfscope.view.extras import halo_text


def halo_of(model: Model, request: Request, layer: str | None) -> Halo:
    """The halo of tiles with which they give a layer's map, or what makes them impossible.

    Args:
        model: As for :func:`erfscope.tile`.
        request: What builds the model.
        layer: The layer; what the model returns if None.

    Raises:
        ErfscopeError: as :func:`erfscope.tile`.
    """
    plan = plan_of(model, replace(request, alphas=(None,)), layer=layer)
    return Halo(px=plan.halo, alignment_px=plan.alignment, blockers=plan.blockers)


def with_halos(results: Sequence[Result], model: Model | Saved, request: Request) -> list[Result]:
    """The results of a model, with the halo of each one's layer where the request asks for it."""
    if not request.settings.halo:
        return [*results]

    @cache
    def found(layer: str, size: tuple[int, ...], has_blocks: bool) -> Halo:
        own = replace(request, sizes=(size,), insert=request.insert if has_blocks else None)
        try:
            return halo_of(model.spec if isinstance(model, Saved) else model, own, layer)
        except ErfscopeError as error:
            return Halo(px=(), alignment_px=(), blockers=(error.reason,))

    return [
        row if row.status == "error" else replace(row, halo=found(row.layer, row.input.size, row.insert is not None))
        for row in results
    ]


def with_halo(verdict: Verdict, model: Model, request: Request, longest: int) -> Verdict:
    """The verdict, failed where tiles need a longer halo or are impossible: a limit that no baseline changes.

    Args:
        verdict: That on everything else.
        model: As for :func:`erfscope.tile`.
        request: That of the check; the halo is that of its layer, or of what the model returns.
        longest: Input pixels on any side.
    """
    word: Literal["fail", "cannot tell"] = "fail"
    try:
        halo = halo_of(model, request, request.layers[0])
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
