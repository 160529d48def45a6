"""Which weights a layer depends on."""

from __future__ import annotations

from torch import fx

from erfscope.adapters.module import ModuleAdapter
from erfscope.errors import unknown


def needed_keys(adapter: ModuleAdapter, layer: str) -> set[str]:
    """Find the keys of the state dict that ``layer`` depends on in the recorded pass; all keys where there is none.

    Raises:
        ErfscopeError: unknown layer.
        MeasurementError: the model fails on an input of its size.
    """
    recording, state = adapter.recording, adapter.module.state_dict(keep_vars=True)
    seen = recording.find(layer)
    if seen is None:
        raise unknown("layer", layer, adapter.layer_names, where=adapter.spec)
    if not recording.graph.held:
        return set(state)
    reached, stack = set[fx.Node](), [seen.node]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack.extend(node.all_input_nodes)
    held, tensors = recording.graph.held, adapter.tensors()
    used = {id(tensors[held[node]]) for node in reached if node in held}
    return {name for name, tensor in state.items() if id(tensor) in used}
