"""What an ERF, its sizes and their errors are, and what to use when."""

from __future__ import annotations

from erfscope.view.words import IN_PLANE, IN_PLANE_MEANS

WHAT = (
    "An effective receptive field (ERF) says how strongly each pixel moves one unit of a feature map: the gradient of a"
    " readout of that unit with respect to the input, averaged over images. It is not a quality score: a larger one is"
    " not better, and a smaller one not worse. It shows influence, not what the model looks for, and unlike a class"
    " activation map it belongs to a location, not to a class."
)
SYMBOLS = (
    "p is the map divided by its sum (of absolute values where it is signed), never its logarithm; d the distance to"
    " the unit's own centre; H and W the sides of the reference. y_c is channel c of the unit, e_c a random sign, and"
    " g_s the gradient of the readout in channel s of the reference. Sizes are in px of the image, or in cells of the map"
    f" that --wrt names. Where the reference has three axes, a clip or a volume, sizes and shares are {IN_PLANE}:"
    f" {IN_PLANE_MEANS}."
)
RATIOS = (
    "A percentage beside a size is that number divided by another that is printed: by the side of the reference"
    " (of_input), or by that of the theoretical receptive field (TRF; of_trf), whatever of it lies outside. Of H x W"
    " cells the side is sqrt(H W), and an area is divided by H W. A radius is half a width: a radius of 50 % of the"
    " side reaches from the middle to the borders."
)
ERRORS = (
    "Errors are delete-one-group jackknife standard errors over at most ten groups of images (or draws, for one image);"
    " there are none below four groups. Differences are paired: over the same images, group by group. The square of an"
    " error is right on average; one from ten groups is good to a quarter, and typically too small where few images"
    " decide a size: context_r50 and context_r90 of attention by 5 to 20 % from 10 or 20 images."
)
GUIDE = (
    ("to compare models", "--convention jacobian; context_r50 and far_mass, which leave the unit's own cell out"),
    ("to compare with RepLKNet's tables", "--convention replknet; the `published` block of the JSON"),
    ("to compare with OpenERF", "--convention kim; the `published` block of the JSON"),
    ("for Luo's closed forms", "--convention energy; sigma_row and sigma_col"),
    ("for theorems on signed influence", "--convention signed, 16 images or more"),
    ("in continuous integration", "erfscope check, which compares with a stored baseline"),
)
