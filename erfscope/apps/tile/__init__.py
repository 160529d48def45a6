"""Tiles of images that are too large for one forward pass: how far they must overlap, and inference on them.

May import: what ``apps`` may.
"""
