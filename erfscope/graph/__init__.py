"""One recorded forward pass of a model as a graph of operations; imports torch and ``geometry``, nothing else of ours."""
