"""The gradient engine: several units and draws from one forward pass of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from erfscope.core.adapter import Features
from erfscope.core.answer.convention import Convention, random_signs
from erfscope.core.run.attribution.forward import ForwardPass, ModelForward, Question, guarded
from erfscope.core.run.attribution.readout import unit_rows
from erfscope.core.values.unit import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Contributions of a batch of images to n units, from one backward pass (or from all channels' together).

    Several units share a pass where their theoretical receptive fields (TRF) do not overlap; else there is one."""

    #: (B, *space) float64, where the gradient is (on the CPU where the device has none); a part of the reference where
    #: ``origin`` is given. Of several units, the contribution to the one whose TRF a cell lies in.
    maps: Tensor
    #: The units' channels in the order of :func:`unit_rows`, (N, C) float64.
    value: Tensor
    #: The first cell of the maps along each axis of the reference; None if they are whole.
    origin: tuple[int, ...] | None = None
    #: Squared norm of the gradient over channels at each cell, as ``maps``, see :func:`remaining_squares`; and the same
    #: with random signs on the readout's weights. None where these have random signs, or it was not asked for.
    squares: tuple[Tensor, Tensor] | None = None


class AskedUnits(NamedTuple):
    """What is asked of one map of a pass."""

    question: Question
    #: Of the map.
    units: Sequence[Unit]
    #: What each unit is called among all that are measured.
    numbers: Sequence[int]
    #: Whether the norm with random signs may be asked for.
    may_cancel: bool = False


#: A forward pass, and what is asked of each of its maps.
ReadPass = tuple[ForwardPass, Sequence[AskedUnits]]


def of_units(
    passes: Iterable[ReadPass], x: Tensor, images: Sequence[int], *, compare: bool = False
) -> Iterator[tuple[list[int], Iterator[list[Contribution]]]]:
    """Contributions of every cell of the references to each unit, in the order of the passes.

    Args:
        passes: Forward passes, with what is asked of them, by one convention and one seed.
        x: Inputs (B, C_in, *space), or the part of them that the passes need.
        images: Global index of each input, which random signs are keyed by.
        compare: As for :func:`contributions`, of those that may cancel.

    Yields:
        For each unit its numbers, one per reference, and its draws, each with one contribution per reference, made as
        they are asked for. They must be used up before the next unit is asked for, since the last one frees the graph.
    """
    for forward, asked in passes:
        # What is asked of one unit has one backward pass, whatever the references.
        by_unit = dict[tuple[int, Unit, bool], list[tuple[Features, Question, int]]]()
        for features, (question, units, numbers, may_cancel) in zip(forward(x), asked, strict=True):
            for unit, number in zip(units, numbers, strict=True):
                key = id(features.map), unit, compare and may_cancel
                by_unit.setdefault(key, []).append((features, question, number))
        for left, ((_, unit, signed), of_unit) in zip(range(len(by_unit))[::-1], by_unit.items(), strict=True):
            every, questions, numbers = zip(*of_unit, strict=True)
            words = {"compare": signed, "keep": left > 0, "whole_model": isinstance(forward, ModelForward)}
            yield [*numbers], contributions(every, [[unit]], questions[0], images, **words)
        del by_unit, of_unit, every, features  # the graph is freed before the next one is made


def contributions(
    features: Sequence[Features],
    units: Sequence[Sequence[Unit]],
    question: Question,
    images: Sequence[int],
    *,
    compare: bool = False,
    keep: bool = False,
    whole_model: bool = True,
) -> Iterator[list[Contribution]]:
    """Contributions of every cell of the references to units that share each backward pass: one of each reference for
    every draw.

    The gradient of the sum of the units' scalars, cut to the TRF of one of them, is its own where their TRFs do not
    overlap, and copies of an image do not see each other. One backward pass follows the other: as a batch of gradients
    (``is_grads_batched``) eight take 1.04 to 1.2 times as long on the CPU, for layer3 of resnet18 and the sixth block
    of vit_tiny_patch16_224 at 224 px.

    Args:
        features: The forward pass of the batch, or of as many copies of it, one after the other, as there are lists of
            units: one map, and its references.
        units: Of each copy; units of one copy have theoretical receptive fields (TRF) that do not overlap.
        question: What is asked of them. With ``draws="all"`` one backward pass is made per channel.
        images: Global index of each input, which random signs are keyed by.
        compare: Also take the norm with random signs, to tell a true gradient from rounding noise.
        keep: Whether the graph is needed for other units afterwards.
        whole_model: As for :func:`guarded`: whether the model itself was run, parts of which may run again.

    Source: the compressed vector-Jacobian products of Curtis, Powell & Reid 1974; random signs are Hutchinson's
    estimator of the squared Frobenius norm, and keyed by seed, image and draw alone."""
    convention, found = question.convention, features[0].map
    exact = question.draws == "all" and convention.random
    count = int(question.draws) if convention.random and question.draws != "all" else 1
    rows = [image for own in units for image in images for _ in own]
    with guarded(found.device, whole_model=whole_model):
        y = unit_rows(found, units)
    value = in_double(y.detach())
    is_finite = value.isfinite().all(1)
    for draw in range(count):
        # A graph that is freed as the backward pass goes along leaves its memory to what comes next.
        more = keep or draw < count - 1
        signed = compare and not convention.random and draw == 0
        squares: list[tuple[Tensor, Tensor] | None] = [None] * len(features)
        with guarded(found.device, whole_model=whole_model):
            signs = random_rows(y, rows, question.seed, draw) if convention.random or signed else None
            if exact:
                maps = _all_channels(features, y, convention, keep=more)
            else:
                scalars = convention.readout(y, signs if convention.random else None)
                gradients = backward(features, scalars, keep=more or signed)
                maps = [convention.contribution(g) for g in gradients]
                if signed and signs is not None:
                    others = backward(features, reweight_channels(convention, y, signs), keep=more)
                    squares = [
                        (remaining_squares(convention, g, own), other.square().sum(1))
                        for g, own, other in zip(gradients, maps, others, strict=True)
                    ]
        maps = [without_nonfinite(own, is_finite) if len(y) == len(own) else own for own in maps]
        yield [
            Contribution(maps=own, origin=each.reference.origin, squares=pair, value=value)
            for each, own, pair in zip(features, maps, squares, strict=True)
        ]


def without_nonfinite(maps: Tensor, is_finite: Tensor) -> Tensor:
    """The maps (B, *space), NaN for every image whose unit is not finite (B,): a ReLU's gradient is 0 or 1 even there,
    and would pass for one."""
    return torch.where(is_finite.reshape(-1, *(1,) * (maps.dim() - 1)), maps, torch.nan)


def reweight_channels(convention: Convention, y: Tensor, signs: Tensor) -> Tensor:
    """Randomly signed sum of the channels (B, C) -> (B,) that weighs each as much as the readout does on the average.

    So the gradients of the two can be compared whatever the readout's scale: a mean over C channels weighs each 1/C.
    """
    with torch.enable_grad():
        channels = y.detach().requires_grad_(True)
        scalars = convention.readout(channels, None)
        weights = torch.autograd.grad(scalars.sum(), channels, allow_unused=True)[0] if scalars.requires_grad else None
    if weights is None:
        return (y * 0).sum(1)
    return (y * signs * weights.square().mean(1, keepdim=True).sqrt()).sum(1)


def remaining_squares(convention: Convention, g: Tensor, maps: Tensor) -> Tensor:
    """Squared norm over channels of a gradient (B, C_X, *space) at each cell, (B, *space), as far as its contribution
    shows it.

    Where the contribution ``maps`` (B, *space) sums signed channels that cancel, it counts by the share of the sum of
    magnitudes that is left: a sum that is only rounding noise is as small as the gradient of a sum of channels that is
    only rounding noise."""
    squares = g.square().sum(1)
    if convention.random:  # sums of squares, of which nothing cancels
        return squares
    magnitudes = convention.contribution(g.abs()).abs()
    return squares * torch.where(magnitudes > 0, maps / magnitudes, 1.0).square()


def _all_channels(features: Sequence[Features], y: Tensor, convention: Convention, *, keep: bool) -> list[Tensor]:
    """The exact maps: one backward pass per channel of (B * n, C), contributions added up."""
    totals: list[Tensor] = []
    for channel in range(y.shape[1]):
        gradients = backward(features, y[:, channel], keep=keep or channel < y.shape[1] - 1)
        parts = [convention.contribution(g) for g in gradients]
        totals = [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts
    return totals


def random_rows(y: Tensor, images: Sequence[int], seed: int, draw: int) -> Tensor:
    """Random signs for channels (N, C), of the image that each row is of; in their dtype and on their device."""
    drawn = {image: random_signs(y.shape[1], seed=seed, image=image, draw=draw) for image in dict.fromkeys(images)}
    signs = torch.stack([drawn[image] for image in images])
    # In one copy, which does not wait.
    signs = signs.to(y.dtype).pin_memory() if y.is_cuda else signs
    return signs.to(y, non_blocking=True)


def backward(features: Sequence[Features], scalars: Tensor, *, keep: bool) -> list[Tensor]:
    """Gradient of each image's scalar (B,) with respect to each reference of a map, as a map (B, C_X, *space) in
    float64.

    Images of a batch do not see each other in evaluation mode, so that the sum over the batch gives each its own
    gradient. float64 comes before squares are taken: a float32 gradient of 1e-30 would have the square 0."""
    references = [each.reference for each in features]
    edges, found = {id(each.edge): each.edge for each in references}, dict[int, Tensor | None]()
    if scalars.requires_grad:
        given = torch.autograd.grad(scalars.sum(), [*edges.values()], retain_graph=keep, allow_unused=True)  # type: ignore[arg-type]
        found = dict(zip(edges, given, strict=True))
    gradients = list[Tensor]()
    for reference in references:
        if (g := found.get(id(reference.edge))) is None:
            own = features[0].map.new_zeros(reference.layout.map_shape(reference.shape))
        else:
            own = reference.layout.to_map(g.detach())
        gradients.append(in_double(reference.part(own)))
    return gradients


def in_double(g: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (g.cpu() if g.device.type == "mps" else g).double()
