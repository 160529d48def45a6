"""Closed forms of convolution, attention, GATv2 and pooling.

May import: ``maps`` and below, ``theory.arrays`` and ``theory.jacobian``.
"""
