"""Theoretical receptive fields from one recorded forward pass on the meta device.

The flow: ``record`` runs the model once and notes every operation as a node; each operation's rule says which cells of its inputs a cell of
its output needs; a walk backwards from one unit adds that up. :mod:`erfscope.trf.field` holds the result, :mod:`erfscope.trf.recording` the
public functions. This file imports nothing, so that the result can be had without torch.
"""
