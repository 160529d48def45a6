"""Every unit of a layer: which of them share a backward pass, and the sizes of all their maps.

May import: what ``engine`` may, and its ``state``, ``batch_size`` and ``model``.
"""
