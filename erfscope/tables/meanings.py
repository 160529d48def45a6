"""What the measures that are shown first mean, in at most eight words each."""

MEANING = {
    "r50": "radius that holds half of the ERF",
    "context_r50": "the same without the unit's own cell",
    "r90": "radius that holds nine tenths",
    "far_mass": "share beyond a quarter diagonal",
    "center_share": "share in the unit's own cell",
    "erf_trf": "Luo's size over the theoretical one",
}
