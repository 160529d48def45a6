"""Figures of results; the one door to matplotlib.

May import: ``view`` beside it, ``core`` and below.
"""
