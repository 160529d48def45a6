"""Theoretical receptive fields from one recorded forward pass.

May import: ``restore`` and below.

The flow: ``record`` runs the model once and notes every operation as a node; each operation's rule says which cells of
its inputs a cell of its output needs; a walk backwards from one unit adds that up.
:mod:`erfscope.geometry.receptive_field` holds the result, :mod:`erfscope.trf.record` the public functions."""
