"""The plan of tiles for a model: ``tile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core import IMAGE, Building, ErfscopeError, Model, Request, find_tilings, lists_options


@lists_options
def tile(
    model: Model,
    tile: int | str | Sequence[int] = 256,
    *,
    layer: str | None = None,
    image_size: int | str | Sequence[int] | None = None,
    wrt: str = IMAGE,
    **options: Unpack[Building],
) -> TilePlan:
    """How a model is run on tiles of a large image: the exact overlap (halo) that they need, or why there is none.

    The model is taken in evaluation mode, as :func:`erfscope.analyze` measures it, and handed back as found. The halo
    is that of every unit's theoretical receptive field, from forward passes without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`.
        tile: Side of the part of the output that each tile gives, in input cells: a number, or one for each axis. It is
            rounded up to what the model's strides allow.
        layer: The layer whose map is put together; what the model returns if None.
        image_size: Size of the images, or of one that leaves the same when divided by the total stride; the model's
            own size if None.
        wrt: Of several inputs the one that is cut, ``"input:NAME"``: sizes are in its pixels, and the others grow with
            it.
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The plan, for :func:`erfscope.run_tiled`; ``possible`` is False where tiles differ from the whole image.

    Raises:
        ErfscopeError: unknown model, option or layer, a size with another number of axes, or several inputs of which
            none is named.
        MeasurementError: the model fails, or returns no map.
    """
    request = Request.parse(options)
    found, *others = find_tilings(model, request, tile=tile, layer=layer, image_size=image_size, wrt=wrt)
    if others:
        raise ErfscopeError(f"{found.model} takes several inputs, and a plan is of one: wrt={found.wrt!r}, say")
    return TilePlan.of(found)
