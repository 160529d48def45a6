"""Graph attention whose target weights get no gradient: which nodes and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from erfscope.adapters.state import hooked

#: How many nodes are named.
NAMED = 4


def dead_attention(module: nn.Module, run: Callable[[], object]) -> Iterator[str]:
    """Find the GATv2 layers of which some nodes and heads send no gradient to their target weights.

    A node's softmax is blind to ``lin_r`` where all its neighbours have the same slopes in the LeakyReLU: what
    ``lin_r`` adds to their scores is then the same for all of them. Such a node and head send ``lin_r`` no gradient.

    Args:
        module: A model. Layers of attention are known by their method ``dead_targets(x)``, (B, C, *space) -> (B, n,
            heads) truth values.
        run: Runs it on the input in question.

    Yields:
        One sentence per layer with a dead node.

    Source: Neumeier et al., Gradient Derivation for Learnable Parameters in Graph Attention Networks; the sum over
    pairs of neighbours."""
    seen: dict[str, tuple[Tensor, tuple[int, ...]]] = {}

    def look(name: str, layer: Any, args: tuple[Any, ...]) -> None:
        with torch.no_grad():
            seen[name] = (layer.dead_targets(args[0].detach()), tuple(args[0].shape[2:]))

    layers = {name: layer for name, layer in module.named_modules() if callable(getattr(layer, "dead_targets", None))}
    handles = (
        layer.register_forward_pre_hook(lambda m, args, name=name: look(name, m, args))
        for name, layer in layers.items()
    )
    if not layers:
        return
    with hooked(handles), torch.no_grad():
        run()
    for name, (dead, space) in seen.items():
        if dead.any():
            yield _sentence(name, dead, space)


def _sentence(name: str, dead: Tensor, space: tuple[int, ...]) -> str:
    share = float(dead.double().mean())
    nodes = dead.any(0)
    heads = [str(head) for head in torch.nonzero(nodes.any(0)).flatten().tolist()]
    which = torch.nonzero(nodes.any(1)).flatten().tolist()
    places = [",".join(str(int(i)) for i in torch.unravel_index(torch.tensor(node), space)) for node in which[:NAMED]]
    named = ", ".join(f"({place})" for place in places) + (
        f" and {len(which) - NAMED} more" if len(which) > NAMED else ""
    )
    head = f"head{'s' * (len(heads) != 1)} {', '.join(heads)}"
    return (
        f"{name or 'the model'}: lin_r gets no gradient from {share:.1%} of its nodes and heads ({head}; nodes"
        f" {named}): all neighbours there share the slopes of the LeakyReLU"
    )
