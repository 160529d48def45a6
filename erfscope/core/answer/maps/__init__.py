"""``ErfMap``, sums over images, jackknife; NumPy only.

May import: ``system``, ``values``.
"""
