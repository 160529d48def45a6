"""Numbers that the attribution methods other than the gradient need."""

from __future__ import annotations

#: Steps of the path integral and noisy copies per image; Captum's defaults are 50 and 5.
IG_STEPS, NOISE_SAMPLES = 32, 16
#: Standard deviation of the noise as a share of the input's range, as in Smilkov et al. 2017.
NOISE_STDEV = 0.15
#: Patches along the longer side that occlusion sets to zero, one after the other.
PATCHES = 28
#: How many copies of an image go through the model together, at most; one for other methods.
COPIES = {"integrated_gradients": 8, "smoothgrad": 4, "occlusion": 8}
#: Pixels of an image up to which that many do; of larger ones fewer.
FULL_PIXELS = 224 * 224
#: Tensors of the image's size that Captum makes for each copy, beside the model's pass: masks, products and the last
#: step's. Counted.
EXTRA_TENSORS = {"integrated_gradients": 6, "occlusion": 10}


def copies(method: object, pixels: int) -> int:
    """How many copies of one image a method runs together.

    Args:
        method: Its name; a callable counts as one that runs the image alone.
        pixels: How many the image has.

    Returns:
        A number that depends on nothing else, so that results are the same wherever they are made; the copies do not
        see each other.
    """
    if not isinstance(method, str):
        return 1
    most = COPIES.get(method, 1)
    # The noise of a copy may depend on how many are drawn together.
    return most if method == "smoothgrad" else max(1, min(most, most * FULL_PIXELS // max(pixels, 1)))
