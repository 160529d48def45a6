"""Whether a pass of several images hides the maps that one image alone has."""

from __future__ import annotations

import numpy as np
from torch import fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.layouts import varying_dim
from erfscope.core.graph.recording import Recording


def takes_images_apart(recording: Recording) -> bool:
    """Whether modules run once for each image of the batch, or on all images one behind the other, so that with one
    image they have an ordinary map."""
    if recording.images == 1:
        return False
    for name, mark in recording.graph.marks.items():
        for node in mark.outputs.values():
            *space, batch = recording.positions.places(node) or (None,)
            if batch is None or not any(place.exists for place in space):
                continue
            is_one_of_several = name != mark.module and batch.exists and len({*batch.table}) == 1
            if is_one_of_several or _is_line_of_images(recording, node):
                return True
    return False


def _is_line_of_images(recording: Recording, node: fx.Node) -> bool:
    """Whether a tensor (1, N, ...) holds every place once for each image."""
    places, shape = recording.positions.places(node), shape_of(node)
    dim = varying_dim(places)
    if not dim or shape[0] > 1:
        return False
    cells = np.stack([np.broadcast_to(place.table, shape[dim]) for place in places[:-1]])
    return bool(np.unique(cells, axis=1).shape[1] * recording.images == shape[dim])
