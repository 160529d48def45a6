"""Maps of units by plain autograd on the whole image, and the same by the operations that the units need."""

import contextlib

import torch
from oracle import contributions_of, load, plain_map, weighted

from erfscope import ErfscopeError
from erfscope.core import Unit
from erfscope.core.answer.convention import convention_of
from erfscope.core.graph.run import Forward
from erfscope.core.run.attribution import GraphForward, Question
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds
from erfscope.core.system.containers import tensors_of
from erfscope.core.values.unit import box_at, inside

#: Images at a time: what is planned for one image must hold for a batch.
BATCH = 2


CONVENTION = convention_of((weighted, lambda g: g.abs().sum(1)))


def noise(space, channels=3, batch=BATCH):
    return torch.randn(batch, channels, *space, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def graph_map(model, site, crop, x, shape):
    """The same from what one unit needs, put into the whole reference."""
    part, first = x[inside(crop.image)], [low for low, _ in crop.image]
    forward = GraphForward(Forward(crop, tensors_of(model.adapter.module)), first)
    question = Question(site=site, units=[Unit(index=(0,))], convention=CONVENTION)
    ((found,),) = contributions_of(forward, part, question, range(len(x)))
    if found.origin is None:
        return found.maps
    full = torch.zeros(shape, dtype=found.maps.dtype)
    full[inside(box_at(found.origin, found.maps.shape[1:]))] = found.maps
    return full


def share(crop):
    """Share of the multiply-adds up to the layer."""
    part, whole = cropped_giga_multiply_adds(crop)
    return part / whole if whole else 1.0


def corners_and_middle(space):
    return [tuple(side // 2 for side in space), (0,) * len(space), tuple(side - 1 for side in space)]


def site_with_path(model, layer, unit, wrt):
    """The layer and the reference, if a path leads from one to a unit of the other."""
    with contextlib.suppress(ErfscopeError):
        site = model.site(layer, wrt)
        return site if site.trf(unit) else None
    return None


def agrees(net, space, layer, *, channels=3, wrt="image", units=None, to_map=lambda y: y, x=None, batch=BATCH):
    """Assert that the maps of units, image by image, are those of plain autograd, and that units which see nothing are
    said to; return the crops.
    """
    model, x = load(net, space, channels), noise(space, channels, batch) if x is None else x
    assert model.site(layer).plain_reason is None
    crops = []
    for unit in units or corners_and_middle(model.layer(layer).shape[2:]):
        whole = plain_map(net, x, layer, unit, wrt, to_map)
        if (site := site_with_path(model, layer, tuple(unit), wrt)) is None:
            assert not whole.any()
            continue
        (crop,) = model.crops(site, [tuple(unit)], images=len(x))
        off = (graph_map(model, site, crop, x, whole.shape) - whole).abs().flatten(1).sum(1)
        assert bool((off <= 1e-9 * whole.abs().flatten(1).sum(1)).all()), f"unit {unit} is {off.tolist()} off"
        assert 0 <= share(crop) <= 1
        crops.append(crop)
    return crops
