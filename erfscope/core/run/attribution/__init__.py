"""Convention, readout, and the gradient of one unit; the one door to Captum.

May import: ``answer``, ``adapter``, ``graph`` and below.
"""

from erfscope.core.run.attribution.forward import ForwardPass, GraphForward, ModelForward, Question, guarded
from erfscope.core.run.attribution.gradient import AskedUnits, Contribution, of_units

__all__ = [
    "AskedUnits",
    "Contribution",
    "ForwardPass",
    "GraphForward",
    "ModelForward",
    "Question",
    "guarded",
    "of_units",
]
