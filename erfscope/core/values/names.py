"""Names of tensors in a model."""

from __future__ import annotations

#: The model's input.
IMAGE = "image"
#: Prefix of the name of one of several inputs.
ONE_INPUT = "input:"
#: The whole model's own output; items of a container are written output[0] or output[key].
OUTPUT = "output"
#: Suffix of the name of a module's input.
INPUT = ":in"


def is_input(name: str) -> bool:
    """Whether a reference is the model's input, or one of several."""
    return name == IMAGE or name.startswith(ONE_INPUT)


def input_name(reference: str) -> str:
    """The name of the input that a reference is, of several; "" for any other reference."""
    return reference.removeprefix(ONE_INPUT) if reference.startswith(ONE_INPUT) else ""
