"""Unit, box, layout, sizes, receptive field: plain values.

May import: ``errors``, ``environment``, ``finding``, ``printable``.
"""
