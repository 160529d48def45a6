"""Units, boxes, layouts, sizes and receptive fields: plain values.

May import: nothing of erfscope.
"""
