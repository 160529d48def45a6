"""Blocks that pass messages along a graph of positions."""
