"""Rules by the operation's name: for every operation that is understood, what its output owes to its inputs.

May import: ``trf.edges``, ``trf.axes`` and ``trf.graph``.

A rule is a function from a :class:`~erfscope.trf.rules.registry.Call` to the layout of the output and the edges to the
inputs. To support another operation, write a rule and register it under the operation's name."""

from erfscope.trf.rules import concatenation, indexing, mixing, products, recurrent, slicing, spatial, views  # noqa: F401  each registers its own
from erfscope.trf.rules.registry import RULES, Call, apply

__all__ = ["RULES", "Call", "apply"]
