"""Blocks that pass messages along a graph of positions.

May import: ``adapters.blocks.maps`` and ``errors``.
"""
