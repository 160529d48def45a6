"""Closed forms of convolution, attention, GATv2 and pooling."""
