"""What the operations between a reference and a layer do to a gradient."""

from __future__ import annotations

from erfscope.graph.places import describe, module_of
from erfscope.graph.recording import Recording
from erfscope.graph.rules.reading import call_of
from erfscope.graph.tape import DRAWS


def may_cancel(recording: Recording, layer: str, wrt: str) -> bool:
    """Whether the gradient of a sum of channels may be rounding noise: some operation normalises, or may do so."""
    calls = [call_of(node) for node in recording.path(layer, wrt)[1]]
    return any(call.operation.normalises or ("batch_norm" in call.name and call.args.get("training")) for call in calls)


def unproved_operations(recording: Recording, layer: str, wrt: str) -> dict[str, str]:
    """Operations whose gradient may not be their derivative, each with the name of its module, in the order of
    execution."""
    found = dict[str, str]()
    for node in recording.path(layer, wrt)[1]:
        call = call_of(node)
        if not call.operation.has_derivative:
            found[describe(node, call.name)] = module_of(node)
        elif node.meta["no_grad"]:
            found[describe(node, f"{call.name} without gradients")] = module_of(node)
        elif node.meta.get("draws"):
            found[describe(node, "random numbers")] = module_of(node)
    return found | {why: module for why, module in recording.graph.unfaithful.items() if not why.endswith(DRAWS)}


def gradient_cut(recording: Recording, layer: str, wrt: str) -> tuple[str, bool] | None:
    """The first operation without a gradient where every path to a layer has one, and whether gradients are switched
    off there, as by ``torch.no_grad``; None where a path has none."""
    reference, operations = recording.path(layer, wrt)
    reached, cut = {reference}, None
    for node in operations:
        if reached.isdisjoint(node.all_input_nodes):
            continue
        if not node.meta["no_grad"] and call_of(node).operation.has_derivative:
            reached.add(node)
        else:
            cut = cut or node
    return None if cut is None or operations[-1] in reached else (describe(cut), cut.meta["no_grad"])
