"""The readout of one unit as an ``nn.Module``: the ``forward_func`` of any attribution method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from erfscope.core.adapter import Adapter, Features
from erfscope.core.answer.convention import ContributionRule, Convention, Readout, convention_of, random_signs
from erfscope.core.graph.site import Site
from erfscope.core.system.sound_kernels import SoundKernels
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.names import IMAGE
from erfscope.core.values.unit import Unit


def unit_channels(features: Tensor, unit: Unit) -> Tensor:
    """Channels of one unit that are read: (B, C, *space) -> (B, C)."""
    return unit_rows(features, [[unit]])


def unit_rows(features: Tensor, units: Sequence[Sequence[Unit]]) -> Tensor:
    """The same of units that read the same channels: (N, C), by copy, image and unit.

    Args:
        features: (K * B, C, *space), K copies of B images after each other.
        units: Of each copy.
    """
    if len(units) == len(units[0]) == 1:
        at: tuple[int | slice, ...] = (slice(None), slice(None), *units[0][0].index)
        rows = features[at]
    else:
        images = len(features) // len(units)
        places = [
            (copy * images + image, *unit.index)
            for copy, own in enumerate(units)
            for image in range(images)
            for unit in own
        ]
        rows = features.movedim(1, -1)[tuple(torch.tensor(places, device=features.device).T)]
    channels = units[0][0].channels
    return rows if channels is None else rows[:, list(channels)]


class UnitReadout(nn.Module):
    """The readout of one unit as a module: inputs (B, C_in, *space) -> one number per input, (B,).

    Any Captum class takes it as its ``forward_func``. The model is held, not copied, and left as found after every
    call.

    Args:
        adapter: The model, from ``erfscope.adapters.load`` or ``erfscope.wrap``.
        layer: Layer name; the adapter's default layer if None.
        unit: The unit, or its index: the words that ``analyze`` takes depend on the input, which a readout has not seen
            yet.
        convention: Name, :class:`Convention` or (readout, contribution) pair.
        seed: Seed of the random signs, where the convention has them.
        image: Global index of the image, which the signs depend on.
        draw: Number of the draw, which they depend on too.

    Raises:
        ErfscopeError: an unknown layer or convention, or a unit that is no index.
    """

    def __init__(
        self,
        adapter: Adapter,
        layer: str | None = None,
        unit: Unit | tuple[int, ...] = (0, 0),
        convention: str | Convention | tuple[Readout, ContributionRule] = "jacobian",
        seed: int = 0,
        *,
        image: int = 0,
        draw: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(unit, Unit) and not (
            isinstance(unit, tuple | list) and all(isinstance(index, int) for index in unit)
        ):
            raise ErfscopeError(
                f"a readout takes the index of a unit, such as (3, 3), not {unit!r}; erfscope.layers gives the map's"
                " shape"
            )
        self.adapter = adapter
        # Registered, so that methods that look for layers of a kind (guided backprop) find them.
        self.module = adapter.module
        self.layer = layer or adapter.default_layer
        self.unit = unit if isinstance(unit, Unit) else Unit(index=tuple(unit))
        self.convention = convention_of(convention)
        self.seed, self.image, self.draw = seed, image, draw
        self._sites: dict[tuple[object, ...], Site] = {}
        # Recorded now, and not in the first call: an attribution method may have put hooks on the model by then.
        adapter.recording.known(self.layer)

    def signs(self, like: Tensor) -> Tensor | None:
        """Random signs (1, C) for channels (B, C), or None where the convention has none."""
        if not self.convention.random:
            return None
        return random_signs(like.shape[1], seed=self.seed, image=self.image, draw=self.draw).to(like)[None]

    def features(self, x: Tensor, wrt: str = IMAGE) -> Features:
        """The layer's map and the reference, in one graph."""
        site = self._site(tuple(x.shape[1:]), wrt)
        with SoundKernels():
            return self.adapter.features(x, site)

    def _site(self, shape: tuple[int, ...], wrt: str) -> Site:
        if (wrt, shape) not in self._sites:
            self._sites[wrt, shape] = self.adapter.site(self.layer, wrt, shape=shape)
        return self._sites[wrt, shape]

    def read(self, features: Tensor) -> Tensor:
        """(B, C, *space) -> (B,)."""
        y = unit_channels(features, self.unit)
        return self.convention.readout(y, self.signs(y))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, *space) -> (B,)."""
        return self.read(self.features(x).map)


def as_leaf(x: Tensor, order: torch.memory_format = torch.preserve_format) -> Tensor:
    """Return a copy of ``x`` that can be differentiated, also where ``x`` was made in inference mode, in some order of
    memory."""
    with torch.inference_mode(False), torch.enable_grad():
        return x.detach().clone(memory_format=order).requires_grad_(True)
