"""Figures of results; the one door to matplotlib.

May import: ``view``, ``storage`` and below.
"""
