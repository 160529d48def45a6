"""One recorded forward pass of a model as a graph of operations.

May import: ``system``, ``values``.
"""
