"""What an ERF, its sizes and their errors mean, and which convention serves which purpose."""

from __future__ import annotations

from erfscope.view.words import IN_PLANE, IN_PLANE_MEANS, JACKKNIFE

WHAT = (
    "An effective receptive field (ERF) says how strongly each pixel moves one unit of a feature map: the gradient of a"
    " readout of that unit with respect to the input, averaged over images. It is not a quality score: a larger one is"
    " not better, and a smaller one not worse. It shows influence, not what the model looks for, and unlike a class"
    " activation map it belongs to a location, not to a class."
)
SYMBOLS = (
    "p is the map divided by its sum (of absolute values where it is signed), never its logarithm. d is the distance to"
    " the unit's own centre; H and W are the sides of the reference. y_c is channel c of the unit, e_c a random sign,"
    " and g_s the gradient of the readout with respect to channel s of the reference. Sizes are in px of the image, or"
    " in cells of the map that --wrt names."
)
THREE_AXES = (
    f"Where the reference has three axes (a clip, a volume), sizes and shares are {IN_PLANE}: {IN_PLANE_MEANS}."
)
RATIOS = (
    "A percentage beside a size is the size divided by the side of the reference (of_input) or of the whole theoretical"
    " receptive field (TRF; of_trf), the part outside the input included; both sides are printed. The side of H x W"
    " cells is sqrt(H W), and an area is divided by H W. A radius is half a width: a radius of 50 % of the side reaches"
    " from the middle to the borders."
)
ERRORS = (
    f"Errors are {JACKKNIFE}s over at most ten groups of images, or of draws for a single image; fewer than four groups"
    " give no errors. Differences are paired: they are taken over the same images, group by group. The square of an"
    " error is right on average. An error from ten groups is itself uncertain by about a quarter. It is typically too"
    " small where few images dominate a size: by 5 to 20 % for context_r50 and context_r90 of attention from 10 or 20"
    " images."
)
GUIDE = (
    ("to compare models", "--convention jacobian; context_r50 and far_mass, which leave the unit's own cell out"),
    ("to compare with RepLKNet's tables", "--convention replknet; the `published` block of the JSON"),
    ("to compare with OpenERF", "--convention kim; the `published` block of the JSON"),
    ("for Luo's closed forms", "--convention energy; sigma_row and sigma_col"),
    ("for theorems on signed influence", "--convention signed, 16 images or more"),
    ("in continuous integration", "erfscope check, which compares with a stored baseline"),
)
