"""The plain interpreter of a graph, and what hooks see of a module: with the two a recording is compared."""

from collections import defaultdict

import torch
from oracle import sound_norms
from torch import Tensor, fx

from erfscope.core.system.containers import tensors_of


def tensors_in(given, path=()):
    """Every tensor in tuples, lists, dictionaries and lists of images, with the items on the way to it."""
    if isinstance(given, Tensor):
        yield path, given
    elif isinstance(given, dict | list | tuple):
        for key, each in given.items() if isinstance(given, dict) else enumerate(given):
            yield from tensors_in(each, (*path, key))
    elif hasattr(given, "tensors"):  # torchvision's ImageList
        yield (*path, "tensors"), given.tensors


def replay(graph, module, *inputs):
    """The value of every node, with the weights that the module has now."""
    own = tensors_of(module)
    found = dict(zip(graph.inputs, inputs, strict=True)) | graph.constants
    found |= {node: own[name] for node, name in graph.held.items()}
    for node in graph.nodes:
        if node.op == "call_function":
            args, kwargs = (fx.map_arg(each, found.get) for each in (node.args, node.kwargs))
            with torch.set_grad_enabled(not node.meta["no_grad"] and torch.is_grad_enabled()):
                found[node] = node.target(*args, **kwargs)
        if isinstance(found[node], Tensor):
            assert (found[node].shape, found[node].dtype) == (node.meta["val"].shape, node.meta["val"].dtype), node
    return found


def seen_by_hooks(module, *inputs):
    """What every call of every module takes and gives, by the names that marks have."""
    calls, handles = defaultdict(list), []

    def copied(given):
        return {path: tensor.detach().clone() for path, tensor in tensors_in(given)}

    for name, part in module.named_modules():

        def before(_module, args, kwargs, found=calls[name]):
            found.append([copied(dict(enumerate(args)) | kwargs), None])

        def after(_module, _args, out, found=calls[name]):
            next(call for call in reversed(found) if call[1] is None)[1] = copied(out)

        handles += [part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after)]
    with torch.no_grad():
        module(*inputs)
    for handle in handles:
        handle.remove()
    return {
        name if len(found) == 1 else f"{name}@{number}": call
        for name, found in calls.items()
        for number, call in enumerate(found)
    }


def assert_marks_are_what_hooks_see(graph, module, *inputs):
    """Every input and output of every call, to the last bit or (fused operations) to 1e-12."""
    with torch.no_grad():
        values = replay(graph, module, *(tensor for _, tensor in tensors_in(inputs)))
    seen = seen_by_hooks(module, *inputs)
    assert graph.marks.keys() == seen.keys()
    for name, (taken, given) in seen.items():
        for wanted, nodes in ((taken, graph.marks[name].inputs), (given, graph.marks[name].outputs)):
            assert wanted.keys() == nodes.keys(), name
            for path, tensor in wanted.items():
                torch.testing.assert_close(values[nodes[path]], tensor, rtol=1e-12, atol=1e-13, msg=f"{name} {path}")


def assert_same_derivative(graph, module, x):
    """The output's value and gradient at one input, against the module by plain autograd."""
    x = x.detach().clone().requires_grad_(True)
    with sound_norms():
        outs = [module(x), replay(graph, module, x)[graph.marks[""].outputs[()]]]
    weights = torch.randn(outs[0].shape, dtype=outs[0].dtype, generator=torch.Generator().manual_seed(0))
    gradients = [torch.autograd.grad(out + 0 * x.sum(), x, weights)[0] for out in outs]
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-13)
