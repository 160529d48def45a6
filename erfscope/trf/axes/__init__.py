"""Axes of a tensor: which cells of the image each index stands on, and how indices map back.

May import: nothing of erfscope.
"""
