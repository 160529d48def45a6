"""Blocks inserted into a model, and the places that can take one."""
