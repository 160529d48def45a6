"""Convention, readout, and the gradient of one unit; the one door to Captum.

May import: ``graph`` and below.
"""

from erfscope.attribution.forward import ForwardPass, GraphForward, ModelForward, Question, guarded
from erfscope.attribution.gradient import Contribution, of_units

__all__ = ["Contribution", "ForwardPass", "GraphForward", "ModelForward", "Question", "guarded", "of_units"]
