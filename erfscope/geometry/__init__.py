"""Units, boxes, layouts, sizes and receptive fields: plain values.

May import: ``errors``, ``environment``, ``finding``, ``printable``.
"""
