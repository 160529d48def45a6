"""The influence of every input on every output of any function.

May import: ``engine`` (memory only) and below.
"""

from erfscope.influence_matrix.compute import RULES, influence
from erfscope.influence_matrix.result import Influence, Marginals

__all__ = ["RULES", "Influence", "Marginals", "influence"]
