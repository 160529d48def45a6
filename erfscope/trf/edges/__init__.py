"""Common forms of operations that rules are built of: each gives the layout of an output's axes and the edges to its
inputs.

May import: ``trf.axes`` and ``trf.graph``.
"""
