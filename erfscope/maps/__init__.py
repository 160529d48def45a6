"""``ErfMap``, sums over images, jackknife; NumPy only.

May import: ``geometry`` and below.
"""
