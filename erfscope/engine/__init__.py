"""The loop over images: memory, batches, sums, ranks, and the result at the end.

May import: ``results``, ``options`` and below.
"""
