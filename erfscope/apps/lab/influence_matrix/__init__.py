"""The influence of every input on every output of any function.

May import: what ``apps`` may.
"""

from erfscope.apps.lab.influence_matrix.compute import RULES, influence
from erfscope.apps.lab.influence_matrix.result import Influence, Marginals

__all__ = ["RULES", "Influence", "Marginals", "influence"]
