"""Weights of a model: what is loaded, what a layer needs, what stands in for pretrained ones.

May import: what ``adapters`` may, and its ``module`` and ``state``.
"""
