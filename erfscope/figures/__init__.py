"""Figures of results; the one door to matplotlib.

May import: ``tables``, ``storage`` and below.
"""
