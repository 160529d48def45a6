"""Influence matrices: how much every input node moves every output node, for any differentiable map of node features."""

from erfscope.influence_matrix.compute import RULES, influence
from erfscope.influence_matrix.result import Influence, Marginals

__all__ = ["RULES", "Influence", "Marginals", "influence"]
