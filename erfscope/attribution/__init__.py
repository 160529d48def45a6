"""Convention, readout, and the gradient of one unit; the one door to Captum.

May import: ``graph`` and below.
"""

from erfscope.attribution.gradient import Contribution, GradientRequest, gradient_draws, guarded

__all__ = ["Contribution", "GradientRequest", "gradient_draws", "guarded"]
