"""Unit, box, layout, sizes, receptive field: plain values.

May import: row 1.
"""
