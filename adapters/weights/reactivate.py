"""Find the branches that an initialisation switches off, and switch them on.

Many residual nets start as the identity: the last norm of a branch has weight zero, or the branch is multiplied by a
gain of 1e-6. That helps training; a random net in that state has the receptive field of its skip path. What is listed
below was surveyed in timm 1.0.31 (every parameter of one model per family whose largest absolute value at
initialisation is below 1e-2) and in torchvision 0.29."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

#: A weight or gain below this, everywhere, switches its branch off. Those in use start at 1e-6, 1e-5 or 1e-4; a gain of
#: 0.1 (deep CaiT, the first blocks of many) is a choice of scale, not a closed gate.
DORMANT_BELOW = 1e-2

#: Classes (or base classes) whose ``weight`` is a norm's. By name, because FrozenBatchNorm, timm's RmsNorm, EvoNorm and
#: those of other libraries share no base class. Who starts one at zero:
#:   BatchNorm: ResNet, Res2Net, ResNeSt, SKNet, RegNet, CspNet, ByobNet/ByoaNet, MobileViT, TResNet
#:     (``zero_init_last``); LeViT, RepViT, EfficientViT-MSRA, SHViT, TinyViT, iFormer, EfficientViM
#:     (``bn_weight_init=0``); Non-Local blocks
#:   GroupNorm: ResNet-GN, RegNet-SGN, Non-Local
#:   EvoNorm, FilterResponseNorm, InplaceAbn: ResNet-like nets built with them
#:   LayerNorm: SwinV2 (zero); SwinV2-CR and ViT-relpos-RPN (1e-6: a norm after the branch is its residual gain)
_NORM = re.compile(r"(Batch|Layer|Group|Instance|RMS|Rms|Simple|Evo|FilterResponse)Norm|Abn|ABN")

#: Names of residual gains, and who has them:
#:   gamma: LayerScale of ViT, DeiT-III, DINO, MambaOut, MobileNetV4, MaxxViT, SwiftFormer, FastViT, EfficientFormer;
#:     ConvNeXt, EdgeNeXt, InceptionNeXt, RDNet, iFormer; SAGAN, DANet and CCNet blocks (a scalar)
#:   gamma_1, gamma_2: CaiT, BEiT, EVA, VOLO · gamma1 ... gamma3: XCiT · gamma_xca: EdgeNeXt
#:   ls1, ls2: ResMLP · layer_scale, layer_scale_1, layer_scale_parameter1: torchvision's and transformers' ConvNeXt,
#:     FasterNet, PoolFormer
#:   scale: MetaFormer · gain: the ScaledStdConv2d that ends an NFNet branch without SkipInit
#:   skipinit_gain: NFNet with it · lambda1, lambda_1: LayerScale of transformers' DINOv2 and BEiT
#:   res_scale, resweight, alpha: ReZero and SkipInit of other code
_GAIN = re.compile(
    r"gamma(_?\w+)?|ls_?\d?|layer_?scale\w*|scale|gain|skipinit_gain|res_?scale|res_?weight|lambda_?\d|alpha"
)

#: Modules that carry their own identity (x + f(x), or a gate that is open at zero), so that zero closes nothing.
_OWN_IDENTITY = re.compile(r"GlobalResponseNorm|GRN|GlobalContext|GatherExcite|GatedChannel|GCT|Attn?Gate")


def dormant(module: nn.Module) -> list[str]:
    """Names of the weights and gains that switch a branch off.

    Args:
        module: Any model.

    Returns:
        Names as in ``state_dict``, in the order of the modules; a tensor that several modules share is named once.

    Source: He et al. 2019 (zero-initialised last norm), arXiv:1812.01187; Touvron et al. 2021 (LayerScale),
    arXiv:2103.17239; De & Smith 2020 (SkipInit), arXiv:2002.10444."""
    return [name for name, _, _ in _dormant(module)]


def untrained(module: nn.Module) -> list[str]:
    """Names of the weights and gains of :func:`dormant` that are as an initialisation leaves them; the module is not
    changed.

    An initialisation fills a tensor with one number, and leaves a norm's bias at zero; training moves every element by
    another amount. A trained net may hold a norm that is zero throughout, pruned or decayed: its statistics have seen
    images, and other norms of the net are no longer constant. A gain of a single
    number counts as initial where it is 0 or a power of ten.

    Args:
        module: Any model.

    Returns:
        Names as in ``state_dict``; none for a model on the meta device, which has no numbers.
    """
    if any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        return []
    found = [(name, owner) for name, owner, tensor in _dormant(module) if _is_initial(owner, tensor)]
    if any(_has_statistics(owner) for _, owner in found) and _is_trained(module):
        found = [(name, owner) for name, owner in found if not _has_statistics(owner)]
    return [name for name, _ in found]


def reactivate(module: nn.Module) -> int:
    """Set every weight and gain that :func:`dormant` names to 1, in place.

    Args:
        module: A model at random initialisation.

    Returns:
        How many there were.
    """
    found = list(_dormant(module))
    with torch.no_grad():
        for _, _, tensor in found:
            tensor.fill_(1.0)
    return len(found)


def _dormant(module: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Name, owner and tensor of each weight and gain that switches a branch off."""
    found: dict[int, tuple[str, nn.Module, Tensor]] = {}
    for path, owner in module.named_modules():
        # A frozen norm keeps its weight in a buffer.
        for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)):
            is_gain = isinstance(tensor, nn.Parameter) and _is_gain(name, tensor)
            closes = (is_gain or (name == "weight" and _is_norm(owner))) and not _is_a(owner, _OWN_IDENTITY)
            if closes and tensor.is_floating_point() and tensor.numel() > 0:
                found.setdefault(id(tensor), (f"{path}.{name}" if path else name, owner, tensor))
    # A device is waited for once, not for each tensor.
    for device in dict.fromkeys(tensor.device for _, _, tensor in found.values()):
        there = [each for each in found.values() if each[2].device == device]
        largest = torch.stack([tensor.detach().abs().max().float() for _, _, tensor in there]).tolist()
        for (name, owner, tensor), most in zip(there, largest, strict=True):
            if most < DORMANT_BELOW:
                yield name, owner, tensor


def _is_norm(owner: nn.Module) -> bool:
    return _is_a(owner, _NORM)


def _is_a(owner: nn.Module, names: re.Pattern[str]) -> bool:
    """Whether the class of a module, or one that it is derived from, has such a name."""
    return any(names.search(kind.__name__) for kind in type(owner).__mro__)


def _is_initial(owner: nn.Module, tensor: Tensor) -> bool:
    """Whether a dormant weight or gain, and the bias of its norm, are what an initialisation fills in."""
    bias = getattr(owner, "bias", None)
    if not _is_constant(tensor) or (_is_norm(owner) and isinstance(bias, Tensor) and bool(bias.any())):
        return False
    value = abs(float(tensor.detach().flatten()[0]))
    # Half precision keeps three digits of it.
    return tensor.numel() > 1 or value == 0 or abs(math.log10(value) - round(math.log10(value))) < 2e-3


def _has_statistics(owner: nn.Module) -> bool:
    """Whether a norm has running statistics of images that it has seen."""
    mean = getattr(owner, "running_mean", None)
    return isinstance(mean, Tensor) and bool(mean.any())


def _is_trained(module: nn.Module) -> bool:
    """Whether the weight of any norm differs between channels, as none does at initialisation."""
    weights = (getattr(owner, "weight", None) for owner in module.modules() if _is_norm(owner))
    return any(isinstance(weight, Tensor) and weight.numel() > 1 and not _is_constant(weight) for weight in weights)


def _is_constant(tensor: Tensor) -> bool:
    """Whether all elements are one number."""
    flat = tensor.detach().flatten()
    return bool((flat == flat[0]).all())


def _is_gain(name: str, tensor: Tensor) -> bool:
    """Whether the name and the shape are those of one number per channel, or of a single number.

    The shape leaves out EfficientViM's ``alpha`` (4, dim), which goes through a sigmoid and so is half open at zero.
    """
    return _GAIN.fullmatch(name) is not None and tensor.numel() == max(tensor.shape, default=1)
