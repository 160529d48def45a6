"""Names of tensors in a model."""

from __future__ import annotations

#: The model's input.
IMAGE = "image"
#: The whole model's own output; items of a container are written output[0] or output[key].
OUTPUT = "output"
#: Suffix of the name of a module's input.
INPUT = ":in"
