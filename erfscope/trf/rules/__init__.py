"""The table of rules: for every operation that is understood, what its output owes to its inputs.

A rule is a function from a :class:`~erfscope.trf.rules.table.Call` to the place of the output and the edges to the inputs. To support
another operation, write a rule and register it under the operation's name.
"""

from erfscope.trf.rules import composite, indexing, joining, mixing, products, slicing, spatial, views
from erfscope.trf.rules.table import RULES, Call, Made, apply

__all__ = ["RULES", "Call", "Made", "apply", "composite", "indexing", "joining", "mixing", "products", "slicing", "spatial", "views"]
