"""What measures and columns mean, in a few words each."""

from __future__ import annotations

from collections.abc import Iterable

#: The measures that are shown first, in at most eight words.
MEANING = {
    "r50": "radius that holds half of the ERF",
    "context_r50": "the same without the unit's own cell",
    "r90": "radius that holds nine tenths",
    "far_mass": "share beyond a quarter diagonal",
    "center_share": "share in the unit's own cell",
    "erf_trf": "ERF width / TRF width",
}
#: The same in at most eight words for names that a table shows without a word on them, as read alone.
GLOSS = {"context_r50": "r50 without the unit's own cell", "far_mass": "share of the ERF beyond a quarter diagonal"}
#: What the caption of a paper's table says of columns whose names do not say it themselves.
TERMS = {
    "TRF": "side of the theoretical receptive field",
    "all": "the TRF covers the whole input (global operation)",
    "all (n)": "the TRF covers the whole input (global operation), n without it",
    "r50": "radius around the unit that holds half of the ERF",
    "context_r50": MEANING["context_r50"],
    "r90": MEANING["r90"],
}
#: What a page says of the columns on the layer and the model.
STRUCTURE = {
    "stride": "distance between neighbouring units of the layer, in pixels or cells of the reference",
    "TRF": f"{TERMS['TRF']}; all (n): it covers the whole input (global operation), n without such operations",
    "params M": "parameters of the model",
    "GMACs": "multiply-adds of one forward pass, in 10^9",
}
#: How a measure answers to a larger ERF, by its ``wider``.
WIDER = {1: "grows with the ERF", -1: "shrinks as the ERF grows", None: "says nothing of size"}


def gloss_of(names: Iterable[str]) -> str:
    """What those of some names mean that do not say it themselves, in one line; "" where all do."""
    known = dict.fromkeys(names)
    return " · ".join(f"{name}: {meaning}" for name, meaning in GLOSS.items() if name in known)
