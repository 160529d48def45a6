"""The parts of a user's own network: encoder levels, a bottleneck, decoder levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

#: A network with fewer parts is shown by theirs, such as an encoder and a decoder by their levels.
FEWEST = 4


def parts(module: nn.Module, usable: Sequence[str]) -> list[str]:
    """Name the outermost modules with weights that can be measured, in the order in which they run.

    Of a network with few parts those of each that is built of blocks are named, and of a module that cannot be
    measured itself, such as one that gives several tensors, its own.

    Args:
        module: The network.
        usable: The layers that can be measured, in the order in which they run.
    """

    def inside(name: str) -> Iterator[str]:
        for key, child in module.get_submodule(name).named_children():
            path = f"{name}.{key}" if name else key
            # A norm or an activation, even one that learns, is no part, and a list is no module that runs.
            if any(parameter.ndim > 1 for parameter in child.parameters()):
                yield from inside(path) if isinstance(child, nn.ModuleList | nn.ModuleDict) else [path]

    def opened(name: str) -> list[str]:
        has_blocks = any(any(child.children()) for child in module.get_submodule(name).children())
        return [*inside(name)] if has_blocks else [name]

    def measured(name: str) -> list[str]:
        return [name] if name in usable else [each for part in inside(name) for each in measured(part)]

    names = [*inside("")]
    while len(names) < FEWEST and (finer := [each for name in names for each in opened(name)]) != names:
        names = finer
    found = [each for name in names for each in measured(name)]
    if len(found) == 1:
        found = [each for part in inside(found[0]) for each in measured(part)] or found
    return sorted(dict.fromkeys(found), key=usable.index)
