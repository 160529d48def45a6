"""What becomes of a verdict where its findings are written into the baseline, and where a halo is limited."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from erfscope.apps.gate.baseline import BaselineEntry
from erfscope.apps.gate.compare import is_same_structure
from erfscope.apps.gate.structure import StructureChange
from erfscope.apps.gate.verdict import Verdict, Word
from erfscope.core import ErfscopeError, Model, Request, halo_of
from erfscope.show import halo_text

#: How to treat a check without an entry in the baseline: refuse it, write one and still not pass, or write one and
#: pass.
Missing = Literal["refuse", "write", "accept"]
#: Why a check that was written into the baseline was compared with nothing.
FIRST = "no earlier entry"


#: Said where measures go.
REMOVED = (
    "the measures were those of the earlier structure, and are removed: the next check of measures that is accepted"
    " records new ones"
)


def entry_to_store(obtained: BaselineEntry, known: BaselineEntry | None, *, trf_only: bool) -> BaselineEntry:
    """The entry to store: if only the structure was compared, and is as it was, the known measures stay for the next
    check."""
    if not trf_only or known is None or not is_same_structure(obtained, known):
        return obtained
    return replace(known, structure=obtained.structure)


def settled(verdict: Verdict, *, update: bool, policy: Missing, path: Path, trf_only: bool = False) -> Verdict:
    """The verdict, changed if the findings are written into the baseline."""
    if verdict.obtained.unusable is not None:
        return verdict
    silent = [name for name, found in verdict.obtained.measures.items() if found.se is None]
    notices = verdict.notices
    if silent and (update or verdict.expected is None):
        notices = (*notices, f"{', '.join(silent)} without an error bar: only four or more groups of images give one")
    known = verdict.expected
    if update and known and known.measures and not entry_to_store(verdict.obtained, known, trf_only=trf_only).measures:
        notices = (*notices, REMOVED)
    if update:
        word: Word = "new" if verdict.expected is None else "updated"
        cause = FIRST if verdict.expected is None else verdict.cause
        return replace(verdict, word=word, cause=cause, reason=f"written to {path.name}", accept="", notices=notices)
    if verdict.expected is not None:
        return verdict
    if policy == "refuse":
        return replace(verdict, reason=f"{verdict.reason}; {verdict.advice.allow}")
    first = replace(verdict, cause=FIRST, accept="", notices=notices)
    if policy == "accept":
        return replace(first, word="new", reason=f"written to {path.name}; the next check compares with it")
    reason = (
        f"there was nothing to compare with: written to {path.name}; look at it and commit it, and the next check"
        f" compares with it; {verdict.advice.allow}"
    )
    return replace(first, created=True, reason=reason)


def with_halo(verdict: Verdict, model: Model, request: Request, longest: int) -> Verdict:
    """The verdict, failed where tiles need a longer halo or are impossible: a limit that no baseline changes.

    Args:
        verdict: That on everything else.
        model: The model.
        request: Its layer is tiled, or what it returns.
        longest: Input pixels on any side.
    """
    word: Literal["fail", "cannot tell"] = "fail"
    cause = "halo too long"
    try:
        halo = halo_of(model, request)
        if not halo.blockers and max(map(max, halo.px)) <= longest:
            return verdict
        obtained = f"no tiles are possible: {halo.blockers[0]}" if halo.blockers else halo_text(halo.px)
    except ErfscopeError as error:
        word, obtained, cause = "cannot tell", str(error), "halo unknown"
    change = StructureChange(what="halo", obtained=obtained, expected=f"at most {longest} px", verdict=word)
    if verdict.word == "fail":
        word, cause = "fail", verdict.cause
    return replace(verdict, word=word, cause=cause, structure=(*verdict.structure, change))
