"""Advice on a model's design: layers that are wasted at an input size, where the field stops growing, and edits that
widen it at the least cost.

May import: what ``apps`` may.
"""
