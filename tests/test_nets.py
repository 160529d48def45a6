"""Every net of the table in tests/nets through all that holds for any net; each is built and recorded once.

A net that was reported is a row there, and one of these checks fails until it is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import nets.maps
import nets.misleading
import nets.ordinary
import nets.others
import nets.parts
import nets.reported
import nets.tokens  # noqa: F401  (each fills the table)
import numpy as np
import pytest
import torch
from nets import NETS, Net, Positions
from oracle import Index, output_of, plain_gradient, plain_map, positive, sees_outside, support, units_of, weighted
from plain import graph_map
from replay import assert_marks_are_what_hooks_see, assert_same_derivative
from torch import Tensor

import erfscope
from erfscope import ErfscopeError
from erfscope.core import OpenModel
from erfscope.core.graph.site import Site

#: Largest relative L1 difference of two right maps.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
#: Finding that says that the layout was chosen among several.
ASSUMED = "assumed_layout"
#: A pass of two images is recorded anyway.
RUNS = {"default": {"batch_size": 2}, "whole": {"batch_size": 2, "plain": True}}
#: Where images of a batch meet.
ALONE = {"one by one": {"batch_size": 1}}


def pictures(channels: int, size: Index, dtype: torch.dtype) -> Tensor:
    """Noise, bright, dark and smooth: four inputs (4, C, *size)."""
    noise = torch.randn(4, channels, *size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, side, dtype=torch.float64) for side in size), indexing="ij")
    ramp = sum((0.5 + 0.3 * k) * axis for k, axis in enumerate(axes))
    phase = torch.arange(channels, dtype=torch.float64).view(-1, *(1,) * len(size))
    smooth = (ramp + phase / 3).sin()
    kinds = [noise[0], 2.2 + 0.05 * noise[1], -2 + 0.05 * noise[2], smooth + 0.01 * noise[3]]
    return torch.stack(kinds).to(dtype)


class Bench:
    """A net with what is taken of it once: its numbers, its pictures, its recorded pass, its layers."""

    def __init__(self, net: Net) -> None:
        self.net, self.module = net, net.build()
        self.x = pictures(net.channels, net.size, getattr(torch, net.dtype))
        self.adapter = erfscope.wrap(self.module, input_size=net.size, in_chans=net.channels)
        self.model = OpenModel(self.adapter, net.name)

    @cached_property
    def positions(self) -> tuple[Positions, ...]:
        """What is stated of it; of a net whose output is a map (B, C, *space), that each unit is its index."""
        if self.net.positions or self.net.expected != "right":
            return self.net.positions
        out = self.module(self.x)
        return (Positions(grid=tuple(out.shape[2:]), pick=lambda y, i: y[(..., *i)]),)

    @cached_property
    def sites(self) -> list[Site]:
        """The layers of which the operations show where units stand, of those that are stated."""
        return [] if self.net.by_shape else [self.model.site(each.layer) for each in self.positions]

    def plain(self, positions: Positions, unit: Index) -> np.ndarray[Any, Any]:
        """The map of one unit by plain autograd, one image at a time: documented means of single maps."""
        maps = []
        for picture in self.x.split(1):

            def gradient(read: Callable[[Tensor], Tensor], picture: Tensor = picture) -> Tensor:
                return plain_gradient(
                    self.module, picture, lambda y: read(positions.pick(y, unit)[0]), positions.layer
                )[0]

            if self.net.convention == "luo":
                maps.append(gradient(torch.sum).abs().sum(0))
            else:
                channels = len(positions.pick(output_of(self.module, picture, positions.layer), unit)[0])
                energy = sum(gradient(lambda y, c=c: y[c]).square().sum(0) for c in range(channels))
                maps.append(energy / energy.sum())
        mean = torch.stack([each for each in maps if each.sum() > 0]).mean(0)
        mean = mean if self.net.convention == "luo" else mean.sqrt()
        return (mean / mean.sum()).double().numpy()


# --- recorded: the graph is the module


def check_recorded(bench: Bench) -> Iterator[str]:
    recording = bench.model.recording
    x = bench.x[: recording.images].to(bench.adapter.dtype)
    if recording.draws_random_numbers or recording.needed_numbers:
        return
    assert_marks_are_what_hooks_see(recording.graph, bench.module, x)
    if isinstance(bench.module(x), Tensor) and not recording.graph.unfaithful:
        assert_same_derivative(recording.graph, bench.module, x)
    yield from ()


# --- placed: units stand where it is stated


def check_placed(bench: Bench) -> Iterator[str]:
    net, recording = bench.net, bench.model.recording
    if net.expected == "refused" and not net.positions:
        for node in recording.graph.marks[""].outputs.values():
            if recording.positions.reading(node).layout is not None:
                yield "units stand somewhere"
    for stated, site in zip(net.positions, bench.sites, strict=False):
        with torch.no_grad():
            raw = output_of(bench.module, bench.x[:2], stated.layer)
        held = site.layout.to_map(raw)
        units, stated_units = [*np.ndindex(*held.shape[2:])], [*stated.units()]
        centres = np.array([stated.centre(u) for u in stated_units])
        for unit in units[:: max(1, len(units) // 20)]:
            center, inexact_reason = site.fields.centers(site.tensor.node, site.layout, unit)
            off = np.abs(centres - center).max(1)
            near = [u for u, distance in zip(stated_units, off, strict=True) if distance <= stated.slack]
            if not any(torch.equal(stated.pick(raw, u), held[(..., *unit)]) for u in near):
                yield f"unit {unit} at {center}, not {stated_units[off.argmin()]}"
            if net.expected != "either" and stated.exact is True and inexact_reason:
                yield inexact_reason
            if stated.exact is False and not inexact_reason:
                yield f"the centre of {unit} is called exact, though branches disagree"


# --- batch: whether its images meet

#: What depends on a branch flows through no operation.
UNSEEN = "branch_by_the_brightness_of_the_batch"


def check_batch(bench: Bench) -> Iterator[str]:
    recording = bench.model.recording
    for positions in bench.net.positions:
        mixes = recording.batch_mixing(positions.layer)
        if bool(mixes) is not bench.net.mixes_batch and bench.net.name != UNSEEN:
            yield f"images of a batch are said to meet by {mixes!r}"


# --- field: what a change of the input shows


def check_field(bench: Bench) -> Iterator[str]:
    module = positive(bench.module) if bench.net.tight else bench.module
    x = torch.rand(1, *bench.x.shape[1:], generator=torch.Generator().manual_seed(1), dtype=bench.x.dtype) + 0.5
    for site in bench.sites:
        # Of a gradient that is another one, or of chance, a change of the input says nothing.
        for unit in () if site.plain_reason else units_of(site.space):

            def read(y: Any, site: Site = site, unit: Index = unit) -> Tensor:
                return weighted(site.layout.to_map(y)[(slice(None), slice(None), *unit)])

            seen = support(module, x, read, site.layer)
            try:
                box = site.trf(unit).clipped_box_px
            except ErfscopeError as error:
                if seen is not None:
                    yield f"{error}; it sees {seen}"
                continue
            sides = zip(box, seen or (), strict=seen is not None)
            if not all(first <= low and high <= last for (first, last), (low, high) in sides):
                yield f"{site.layer} {unit} sees {seen}, beyond {box}"
            if sees_outside(module, x, read, box, site.layer):
                yield f"{site.layer} {unit} sees beyond {box}"
            if bench.net.tight and site.trf(unit).exact and seen != box:
                yield f"{site.layer} {unit} sees {seen}, less than {box}"


# --- cropped: what units need gives their map


def check_cropped(bench: Bench) -> Iterator[str]:
    x = bench.x[::3]
    for site in bench.sites:
        reason = site.plain_reason or ""
        if bench.net.plain not in reason:
            yield f"the model itself is run for {reason!r}, not for {bench.net.plain!r}"
        if reason or bench.model.recording.needed_numbers:
            continue
        for unit in units_of(site.space)[:3]:
            truth = plain_map(bench.module, x, site.layer, unit, to_map=site.layout.to_map)
            try:
                site.trf(unit)
            except ErfscopeError as error:
                if truth.any():
                    yield str(error)
                continue
            (crop,) = bench.model.crops(site, [unit], images=len(x))
            whole = graph_map(bench.model, site, crop, x, truth.shape)
            off = (whole - truth).abs().flatten(1).sum(1)
            if not bool((off <= TOLERANCE[bench.net.dtype] * truth.abs().flatten(1).sum(1)).all()):
                yield f"{site.layer} {unit} is {off.tolist()} off by what it needs"


# --- measured: right, or refused


def check_measured(bench: Bench) -> Iterator[str]:
    maps: Maps = {}
    for name, options in (RUNS | ALONE if bench.net.mixes_batch else RUNS).items():
        for text in _run(bench, maps, name == "default", **options):
            yield f"{name}: {text}"


Maps = dict[tuple[str, Index], np.ndarray[Any, Any]]


def _run(bench: Bench, maps: Maps, is_first: bool, **options: Any) -> Iterator[str]:
    net = bench.net
    found = measure(bench, **options)
    if isinstance(found, str):
        if net.expected == "right":
            yield f"refused: {found}"
        elif net.expected != "noisy" and not names_what_it_refuses(bench, found):
            yield f"the refusal names no layer and tokens: {found}"
        return
    texts = [finding.text for result in found for finding in result.findings]
    if net.expected == "noisy":
        if not any(re.search(r"random|differ|determin|state", text) for text in texts):
            yield "ok, and not a word about runs that differ"
        return
    yield from filter(None, (complaint(bench, result, maps) for result in found))
    if is_first and (text := off_middle(bench, found[0])) is not None:
        yield text
    if net.mixes_batch and not any(re.search(r"one image at a time", text) for text in texts):
        yield "not a word about images that meet in a batch"


def measure(bench: Bench, **options: Any) -> list[erfscope.Result] | str:
    """Results of the middle unit and the first one, or why there are none."""
    words: dict[str, Any] = {"images": bench.x, "unit": ["centre", "corner"], "convention": bench.net.convention}
    words |= {"dtype": bench.net.dtype, "measures": "r50"}
    words |= {"draws": "all"} if bench.net.convention == "jacobian" else {}
    words |= {} if bench.net.positions else {"layer": "output", "unit": "centre"}
    try:
        report = erfscope.sweep(bench.module if bench.net.keeps else bench.adapter, **words, **options)
    except ErfscopeError as error:
        return str(error)
    failed = [result.error or result.status for result in report if not result.ok]
    return failed[0] if failed else list(report)


def names_what_it_refuses(bench: Bench, text: str) -> bool:
    """Whether an error names a layer and the tokens."""
    names = {"output", *(name for name, _ in bench.module.named_modules() if name)}
    words = {word.strip(".") for word in re.findall(r"[\w.\[\]]+", text)}
    return bool(names & words) and (bench.net.tokens is None or str(bench.net.tokens) in words)


def complaint(bench: Bench, result: erfscope.Result, maps: Maps) -> str | None:
    """What is wrong with an ``ok`` result; None if it is right. ``maps`` keeps plain maps by layer and unit."""
    assert result.unit is not None
    exact = result.unit.center_exact and ASSUMED not in {finding.code for finding in result.findings}
    texts = []
    for positions in bench.positions:
        if not same_layer(bench, result.layer, positions.layer):
            texts.append(f"layer {result.layer}, not {positions.layer}")
        elif not (units := units_at(positions, result.unit.center_px, result.unit.index, exact)):
            texts.append(f"{result.layer} {result.unit.index} at {result.unit.center_px} (exact: {exact})")
        elif exact and positions.exact is False:
            texts.append(f"centre {result.unit.center_px} is called exact, though branches disagree")
        else:
            difference = min(differences(bench, result, positions, units, maps))
            if not difference <= TOLERANCE[bench.net.dtype]:
                texts.append(f"map of {result.layer} {result.unit.index} is {difference:.1e} off")
            elif bench.net.expected == "right" and positions.centre and positions.exact and not exact:
                texts.append(f"centre {result.unit.center_px} of {result.layer} is not known to be exact")
            else:
                return None
    return "; ".join(dict.fromkeys(texts)) or f"measured {result.layer}, whose units stand on nothing"


def same_layer(bench: Bench, layer: str, stated: str) -> bool:
    """Whether two names mean one tensor, such as a net's output and its last layer's."""
    if layer == stated:
        return True
    one, other = (output_of(bench.module, bench.x[:1], each) for each in (layer, stated))
    return (
        isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    )


def units_at(positions: Positions, center: tuple[float, ...], index: Index, exact: bool) -> list[Index]:
    """The units that a result may be about: the one of its index if that stands where it says, else the one that does.

    Where the centre is said not to be exact, it may be either: the index of a reversed map counts along the axes of the
    image."""
    known = len(index) == len(positions.grid) and all(i < side for i, side in zip(index, positions.grid, strict=True))
    if positions.centre is None:
        return [index] * known
    stands = positions.centre

    def off(unit: Index) -> float:
        return max(abs(a - b) for a, b in zip(stands(unit), center, strict=True))

    if known and off(index) <= positions.slack:
        return [index]
    nearest = min(positions.units(), key=off)
    return [index] * (known and not exact) + [nearest] * (off(nearest) <= positions.slack)


def differences(
    bench: Bench, result: erfscope.Result, positions: Positions, units: list[Index], maps: Maps
) -> Iterator[float]:
    """How far the result's map is from the plain one of each unit, in relative L1."""
    assert result.map is not None
    for unit in units:
        key = (f"{positions.layer} {positions.grid}", unit)
        if key not in maps:
            maps[key] = bench.plain(positions, unit)
        yield float(np.abs(result.map.values - maps[key]).sum())


def off_middle(bench: Bench, result: erfscope.Result) -> str | None:
    """Whether another unit stands nearer to the middle of the input than the default one, where each has one centre."""
    assert result.unit is not None
    middle = [(side - 1) / 2 for side in bench.net.size]
    for positions in bench.net.positions if result.unit.center_exact else ():
        if positions.exact and same_layer(bench, result.layer, positions.layer):
            away = [
                max(abs(c - m) for c, m in zip(positions.centre(u), middle, strict=True)) for u in positions.units()
            ]
            own = max(abs(c - m) for c, m in zip(result.unit.center_px, middle, strict=True))
            if own > min(away) + positions.slack + 1e-6:
                return f"the unit at {result.unit.center_px} is not the nearest to {middle}"
    return None


# --- tiled: tiles give the whole image, or it is said why not


def check_tiled(bench: Bench) -> Iterator[str]:
    if not bench.positions or bench.net.expected == "noisy":
        return
    layer = {} if bench.positions[0].layer == "output" else {"layer": bench.positions[0].layer}
    try:
        plan = erfscope.tile(bench.adapter, 8, image_size=bench.net.size, **layer)
    except ErfscopeError as error:
        if "\n" in str(error):
            yield str(error)
        return
    if not plan.possible:
        if not plan.blockers:
            yield "impossible, and not a word about why"
        return
    # Several tiles along each axis, on an image that the model treats as its own.
    sides = zip(bench.net.size, plan.halo, plan.alignment, strict=True)
    size = tuple(own + -(-max(0, sum(halo) + 24 - own) // step) * step for own, halo, step in sides)
    plan = plan.with_tile(max(8, max(size) // 3))
    x = torch.randn(1, bench.net.channels, *size, generator=torch.Generator().manual_seed(1), dtype=bench.x.dtype)
    with torch.no_grad():
        whole = output_of(bench.module, x, bench.positions[0].layer)
    off = (erfscope.run_tiled(bench.adapter, x, plan, batch_size=3) - whole).abs().max()
    if not off <= 1e3 * TOLERANCE[bench.net.dtype] * whole.abs().max():
        yield f"tiles are {off:.1e} off"


# --- handed back: as it was lent


def state_of(bench: Bench) -> list[Any]:
    module = bench.module
    return [
        [part.training for part in module.modules()],
        [(name, each.requires_grad, each.grad) for name, each in module.named_parameters()],
        {name: each.sum().item() for name, each in module.state_dict().items() if each.dtype.is_floating_point},
        [[len(vars(part)[name]) for name in vars(part) if name.endswith("_hooks")] for part in module.modules()],
        (torch.get_default_dtype(), torch.is_grad_enabled()),
    ]


CHECKS = (check_recorded, check_placed, check_batch, check_field, check_cropped, check_measured, check_tiled)


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_a_net_is_right_in_every_way(net: Net) -> None:
    bench = Bench(net)
    before, wrong = state_of(bench), []
    for check in CHECKS:
        wrong += [f"{check.__name__}: {text}" for text in check(bench)]
        if state_of(bench) != before:
            wrong.append(f"not handed back as found after {check.__name__}")
    assert not wrong, f"{net.claim}\n" + "\n".join(dict.fromkeys(wrong))


@pytest.mark.parametrize("net", [net for net in NETS if net.local], ids=lambda net: net.name)
def test_the_table_says_where_units_stand(net: Net) -> None:
    """Without attention a unit's gradient fills exactly the cell around its stated centre."""
    bench = Bench(net)
    for part in bench.module.modules():
        if hasattr(part, "mix"):
            part.mix = 0.0
    for positions in net.positions:
        for unit in [*positions.units()][:: max(1, len([*positions.units()]) // 7)]:
            box = support(bench.module, bench.x[:1], lambda y: weighted(positions.pick(y, unit)), positions.layer)
            assert box is not None
            assert [(low + high) / 2 for low, high in box] == pytest.approx(positions.centre(unit), abs=1e-9)
