"""Which weights a layer depends on."""

from __future__ import annotations

import torch

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.state import device_of, dtype_of
from erfscope.geometry.layout import Layout
from erfscope.model_errors import blaming


def needed_keys(adapter: ModuleAdapter, layer: str) -> set[str]:
    """Names in the state dict that ``layer``'s map depends on: the parameters in its autograd graph, and the buffers
    beside them.

    Raises:
        ErfscopeError: unknown layer.
        MeasurementError: the model fails on an input of its size.
    """
    shape = (1, adapter.preprocess.channels, *adapter.preprocess.size)
    x = torch.zeros(shape, device=device_of(adapter.module), dtype=dtype_of(adapter.module))
    with blaming(adapter.spec, adapter), torch.enable_grad():
        # Only the graph counts, however the tensor holds its map.
        features = adapter.features(x, layer, known={layer: Layout(order="channels_first")}, parameters=True)
    reached, stack = set(), [features.map.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in reached:
            reached.add(node)
            stack.extend(parent for parent, _ in node.next_functions)
    used = {id(node.variable) for node in reached if hasattr(node, "variable")}
    found = {
        name for name, parameter in adapter.module.named_parameters(remove_duplicate=False) if id(parameter) in used
    }
    owners = {name.rpartition(".")[0] for name in found}
    return found | {name for name, _ in adapter.module.named_buffers() if name.rpartition(".")[0] in owners}
