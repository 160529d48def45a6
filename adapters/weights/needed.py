"""Which weights a layer depends on."""

from __future__ import annotations

import torch

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.state import device_of, dtype_of
from erfscope.errors import ErfscopeError
from erfscope.geometry.layout import Layout
from erfscope.model_errors import model_failed


def needed_keys(adapter: ModuleAdapter, layer: str) -> set[str]:
    """Names in the state dict that ``layer``'s map depends on: the parameters in its autograd graph, and the buffers
    beside them.

    Found by one forward pass on the meta device, or on the model's own where it cannot run on the meta device.

    Raises:
        ErfscopeError: unknown layer.
        MeasurementError: the model fails on an input of its size.
    """
    try:
        parameters = _used(adapter.on_meta(), layer)
    except ErfscopeError:
        raise
    except Exception:  # without numbers a model may fail in any way
        try:
            parameters = _used(adapter, layer)
        except Exception as error:
            raise model_failed(adapter.spec, adapter, error) from error
    owners = {name.rpartition(".")[0] for name in parameters}
    buffers = {name for name, _ in adapter.module.named_buffers() if name.rpartition(".")[0] in owners}
    return parameters | buffers


def _used(adapter: ModuleAdapter, layer: str) -> set[str]:
    """Names of the parameters in the graph of the layer's map."""
    shape = (1, adapter.preprocess.channels, *adapter.preprocess.size)
    x = torch.zeros(shape, device=device_of(adapter.module), dtype=dtype_of(adapter.module))
    names = {id(parameter): name for name, parameter in adapter.module.named_parameters(remove_duplicate=False)}
    with torch.enable_grad():
        # Only the graph counts, however the tensor holds its map.
        features = adapter.features(x, layer, known={layer: Layout(order="channels_first")}, parameters=True)
    found: set[str] = set()
    seen = set()
    stack = [features.map.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
        stack.extend(parent for parent, _ in node.next_functions)
    return found
