"""Weights of a model: what is loaded, what a layer needs, what stands in for pretrained ones."""
