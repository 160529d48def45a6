"""Blocks inserted into a model, and the places that can take one.

May import: what ``adapters`` may, and the rest of it.
"""
