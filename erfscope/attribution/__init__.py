"""Attribution: the gradient of a unit's readout, by autograd or by one of Captum's methods."""

from erfscope.attribution.gradient import Draw, gradient_draws, guarded

__all__ = ["Draw", "gradient_draws", "guarded"]
