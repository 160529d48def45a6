"""The loop over images: memory, batches, sums, ranks, and the result at the end.

The flow: ``model`` is what is measured, with what ``recorded`` passes say of it; ``measure`` makes a ``state.Plan``,
has ``batch`` add its images to ``state.Sums``, and ``outcome`` makes the results of them.

May import: ``attribution`` and ``parallel`` beside it, ``request``, ``answer`` and below.
"""
