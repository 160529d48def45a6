"""Maps of units by plain autograd on the whole image, and the same by the operations that the units need."""

import contextlib

import torch
from oracle import load
from sound_norms import sound_norms
from torch import nn
from torch.autograd.graph import get_gradient_edge

from erfscope import ErfscopeError
from erfscope.core import Unit
from erfscope.core.answer.convention import convention_of
from erfscope.core.graph.run import Forward
from erfscope.core.run.attribution import GraphForward, Question, of_units
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds
from erfscope.core.system.containers import tensors_of
from erfscope.core.values.unit import box_at, inside

#: Images at a time: what is planned for one image must hold for a batch.
BATCH = 2


def readout(y, _signs=None):
    """Different weights for all channels: a sum would hide errors behind a norm that centres the channels."""
    return (y * torch.cos(torch.arange(y.shape[1]).to(y) + 0.3)).sum(1)


CONVENTION = convention_of((readout, lambda g: g.abs().sum(1)))


def noise(space, channels=3, batch=BATCH):
    return torch.randn(batch, channels, *space, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def scrambled(net):
    """In float64, with statistics and gains that are not those of a fresh net, which would make many errors vanish."""
    g = torch.Generator().manual_seed(7)
    for module in net.modules():
        for name in ("gamma", "ls1", "ls2"):
            if isinstance(getattr(module, name, None), nn.Parameter):
                getattr(module, name).data.fill_(0.7)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(generator=g).mul_(0.1)
            module.running_var.uniform_(0.7, 1.5, generator=g)
            if module.affine:
                module.weight.data.uniform_(0.5, 1.5, generator=g)
                module.bias.data.normal_(generator=g).mul_(0.1)
    return net.double().eval()


def plain_map(net, x, layer, unit, wrt="image", to_map=lambda y: y):
    """The contributions by hooks and ``torch.autograd.grad`` alone, on the whole image."""
    seen, x = {}, x.clone().requires_grad_(True)
    modules = dict(net.named_modules())

    def refer(tensor):
        # The tensor object itself is another one after an operation in place.
        seen["edge"], seen["like"] = get_gradient_edge(tensor), tensor.detach()

    handles = [modules[layer].register_forward_hook(lambda _m, _a, out: seen.update(y=to_map(out) * 1))]
    if wrt.endswith(":in"):
        handles.append(modules[wrt.removesuffix(":in")].register_forward_pre_hook(lambda _m, args: refer(args[0])))
    elif wrt != "image":
        handles.append(modules[wrt].register_forward_hook(lambda _m, _a, out: refer(out)))
    try:
        with sound_norms():
            net(x)
    finally:
        for handle in handles:
            handle.remove()
    y = seen["y"][(slice(None), slice(None), *unit)]
    gradient = torch.autograd.grad(readout(y).sum(), seen.get("edge", x), allow_unused=True)[0]
    gradient = torch.zeros_like(seen.get("like", x)) if gradient is None else gradient
    return (gradient if wrt == "image" else to_map(gradient)).abs().sum(1)


def graph_map(model, site, crop, x, shape):
    """The same from what one unit needs, put into the whole reference."""
    part, first = x[inside(crop.image)], [low for low, _ in crop.image]
    units = [Unit(index=(0,))]
    forward = GraphForward(Forward(crop, tensors_of(model.adapter.module)), first)
    question = Question(site=site, units=units, convention=CONVENTION)
    ((found,),) = of_units([(forward, units)], part, question, range(len(x)))
    if found.origin is None:
        return found.maps
    full = torch.zeros(shape, dtype=torch.float64)
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
