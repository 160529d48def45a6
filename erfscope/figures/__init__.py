"""Figures of results; the one door to matplotlib.

May import: ``tiling``, ``view``, ``storage`` and below.
"""
