"""The cone: only what a unit can see is computed.

The flow: ``plan`` records one forward pass without numbers, walks back from the unit to find what it needs of every module's input, and
chooses where to crop; it records the cropped pass too, and ``proof`` compares the two operation by operation. What cannot be shown to be
equal is not cropped. :mod:`erfscope.cone.cone` holds the result and applies it.
"""
