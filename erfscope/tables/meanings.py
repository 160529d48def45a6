"""What measures and columns mean, in a few words each."""

#: The measures that are shown first, in at most eight words.
MEANING = {
    "r50": "radius that holds half of the ERF",
    "context_r50": "the same without the unit's own cell",
    "r90": "radius that holds nine tenths",
    "far_mass": "share beyond a quarter diagonal",
    "center_share": "share in the unit's own cell",
    "erf_trf": "Luo's size over the theoretical one",
}
#: What the caption of a paper's table says of columns whose names do not say it themselves.
TERMS = {
    "TRF": "side of the theoretical receptive field",
    "all": "everything, by a global operation",
    "all (n)": "everything, by a global operation, and n without it",
    "r50": "radius around the unit that holds half of the ERF",
    "context_r50": MEANING["context_r50"],
    "r90": MEANING["r90"],
}
#: What a page says of the columns on the layer and the model.
STRUCTURE = {
    "stride": "distance between neighbouring units of the layer, in pixels or cells of the reference",
    "TRF": f"{TERMS['TRF']}; all (n): a global operation makes it everything, n without such operations",
    "params M": "parameters of the model",
    "GMACs": "multiply-adds of one forward pass, in 10^9",
}
#: How a measure answers to a larger ERF, by its ``wider``.
WIDER = {1: "grows with the ERF", -1: "shrinks as the ERF grows", None: "says nothing of size"}
