"""The old recording (erfscope.trf) and the graph say the same of every layer; goes with the old one."""

import dataclasses

import pytest
import torch
from oracle import FIRST

import erfscope.adapters
from erfscope.engine.model import LoadedModel
from erfscope.graph.field import Fields
from erfscope.graph.numbers import Numbers
from erfscope.graph.positions import Positions
from erfscope.graph.record import record, tensors_of

#: Fields of a TRF that are words about a module: that of the graph is the innermost one.
WORDS = {"global_by", "center_doubt"}


def same(one, other):
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return abs(one - other) < 1e-6 if isinstance(one, float) else one == other


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0", "mobilevitv2_050", "hieradet_small"),
        *("levit_128s", "crossvit_tiny_240", "resnet26d", "torchvision:googlenet"),
    ],
)
def test_every_layer_has_the_same_field(name):
    adapter = erfscope.adapters.load(name, weights="none")
    old = LoadedModel(adapter=adapter, label=name).recording
    x = torch.empty(2, adapter.preprocess.channels, *adapter.preprocess.size, device="meta")
    graph = record(adapter.module.eval(), (x,))
    positions = Positions(graph, Numbers(graph, tensors_of(adapter.module)))
    fields = Fields(positions, positions.image, FIRST)
    compared = 0
    for layer in old.layers:
        if layer.stage or old.calls(layer.name) != 1 or layer.name not in graph.marks:
            continue
        outputs = graph.marks[layer.name].outputs
        if list(outputs) != [()]:
            continue
        node, layout = outputs[()], positions.reading(outputs[()]).layout
        assert layout is not None, layer.name
        unit = fields.nearest_unit(node, layout)
        assert unit == old.default_unit(layer.name)
        mine, theirs = fields.trf(node, layout, unit), old.trf(layer.name, unit)
        for field in dataclasses.fields(mine):
            if field.name not in WORDS:
                assert same(getattr(mine, field.name), getattr(theirs, field.name)), (layer.name, field.name)
        assert (mine.global_by is None) == (theirs.global_by is None)
        compared += 1
    assert compared > 50
