"""The overlap of crops (halo) with which they give the map of the whole input, found in the recorded pass.

May import: ``engine`` beside it, ``graph`` and below.
"""
