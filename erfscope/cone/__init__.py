"""The part of a forward pass that one unit needs, and the evidence that this is exact.

May import: ``trf`` and below.

The flow: ``trace`` records one forward pass without numbers; ``plan`` walks back from the unit to find what it needs of
every input, and chooses where to crop; it records the cropped pass too, and ``equivalence`` compares the two operation
by operation. What cannot be shown to be equal is not cropped. :mod:`erfscope.cone.cone` holds the result and applies
it."""
