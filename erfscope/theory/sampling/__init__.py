"""Random weights and features: samples, expectations in closed form, and Jacobians.

May import: ``maps`` and below, ``theory.adjacency`` and ``theory.arrays``.
"""
