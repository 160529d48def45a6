"""The projective field: which units the pixels of a box move, by forward-mode derivatives of the model itself."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from erfscope.core.answer.convention import random_signs
from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.run.attribution.forward import guarded
from erfscope.core.run.attribution.gradient import in_double
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.system.model_errors import first_line, wrap_model_errors
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.unit import Box, inside, sides


def projective_fields(
    model: OpenModel, image: Tensor, box: Box, layers: Sequence[str], *, draws: int = 1, seed: int = 0
) -> dict[str, FloatArray]:
    """How strongly the pixels of a box move each unit of some layers.

    One Jacobian-vector product per input channel gives all units of all layers. The box's pixels have random signs in
    it, of which a single pixel needs none.

    Args:
        model: The model.
        image: What it is given, (1, C_in, *space).
        box: The pixels: the first one and the one after the last along each axis.
        layers: Names of layers.
        draws: Random draws that are averaged over.
        seed: Seed of the signs.

    Returns:
        Of each layer an array (*space): the root of the sum of the squared derivatives of a unit's channels with
        respect to the box's pixels. For one pixel this is the unit's map in the convention ``jacobian`` with all
        channels, before it is divided by its sum.

    Raises:
        ErfscopeError: an unknown layer, or one without a map.
        MeasurementError: the model fails, or has an operation without a forward derivative.
    """
    known = {name: layout for layer in layers for name, layout in (model.site(layer).hooks or {}).items()}
    image = image.to(device=model.adapter.device, dtype=model.adapter.dtype)
    count = math.prod(sides(box))
    draws = draws if count > 1 else 1
    squares = dict.fromkeys(layers, torch.zeros((), dtype=torch.float64))
    for draw, channel in product(range(draws), range(image.shape[1])):
        signs = random_signs(count, seed=seed, image=0, draw=draw)
        tangent = torch.zeros_like(image)
        tangent[:, channel][inside(box)] = signs.view(sides(box)).to(image)
        with wrap_model_errors(model.label, model.adapter), _forward_mode(model.label, image.device):
            dual = forward_ad.make_dual(image, tangent)  # type: ignore[no-untyped-call]
            for layer, values in model.adapter.maps(dual, layers, known).items():
                moved = forward_ad.unpack_dual(values).tangent  # type: ignore[no-untyped-call]
                moved = torch.zeros_like(values) if moved is None else moved
                squares[layer] = squares[layer] + in_double(moved[0]).square().sum(0)
    return {layer: (total / draws).sqrt().cpu().numpy() for layer, total in squares.items()}


@contextlib.contextmanager
def _forward_mode(label: str, device: torch.device) -> Iterator[None]:
    """Forward-mode derivatives; attention takes its plain operations, since the fused ones have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), guarded(device), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            # PyTorch's own module of forward derivatives uses what PyTorch has deprecated.
            warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
            with forward_ad.dual_level():
                yield
    except NotImplementedError as error:
        text = f"has an operation without a forward derivative: {first_line(error)}"
        raise MeasurementError(text, model=label) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
