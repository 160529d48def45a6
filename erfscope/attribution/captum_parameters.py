"""Numbers that the attribution methods other than the gradient need."""

from __future__ import annotations

#: Steps of the path integral and noisy copies per image; Captum's defaults are 50 and 5.
IG_STEPS, NOISE_SAMPLES = 32, 16
#: Standard deviation of the noise as a share of the input's range, as in Smilkov et al. 2017.
NOISE_STDEV = 0.15
#: Patches along the longer side that occlusion sets to zero, one after the other.
PATCHES = 28
