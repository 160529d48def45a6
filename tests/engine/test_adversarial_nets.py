"""On nets made to mislead it, a measurement is right, or it is refused: against plain autograd, one image at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import adversarial_maps  # noqa: F401  (each of the three fills the table)
import adversarial_others  # noqa: F401
import adversarial_tokens  # noqa: F401
import numpy as np
import pytest
import torch
from adversarial_nets import NETS, Net, Positions
from sound_norms import sound_norms
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError

#: Largest relative L1 difference of two right maps.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
#: Finding that says that the layout was chosen among several.
ASSUMED = "assumed_layout"


def pictures(channels: int, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Noise, bright, dark and smooth: four inputs (4, C, *size)."""
    noise = torch.randn(4, channels, *size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, side, dtype=torch.float64) for side in size), indexing="ij")
    ramp = sum((0.5 + 0.3 * k) * axis for k, axis in enumerate(axes))
    phase = torch.arange(channels, dtype=torch.float64).view(-1, *(1,) * len(size))
    smooth = (ramp + phase / 3).sin()
    kinds = [noise[0], 2.2 + 0.05 * noise[1], -2 + 0.05 * noise[2], smooth + 0.01 * noise[3]]
    return torch.stack(kinds).to(dtype)


def output_of(module: nn.Module, x: Tensor, layer: str) -> Any:
    """What a layer returns: caught by a hook, and of a container the item that the name ends in."""
    name, *keys = re.split(r"[\[\]]+", layer.rstrip("]"))
    found: list[Any] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        for key in keys:
            output = output[int(key) if isinstance(output, list | tuple) else key]
        # What is worked on in place later is another tensor.
        found.append(output.clone() if isinstance(output, Tensor) else output)

    handle = (module if name == "output" else module.get_submodule(name)).register_forward_hook(keep)
    try:
        module(x)
    finally:
        handle.remove()
    return found[-1]


def plain_map(
    net: Net, module: nn.Module, x: Tensor, positions: Positions, unit: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """The map of one unit by plain autograd, one image at a time: documented means of single maps."""
    rows = []
    for picture in x.split(1):
        leaf = picture.clone().requires_grad_(True)
        with sound_norms():
            y = positions.pick(output_of(module, leaf, positions.layer), unit)[0]
        if net.convention == "luo":
            rows.append(torch.autograd.grad(y.sum(), leaf)[0][0].abs().sum(0))
        else:
            energy = sum(torch.autograd.grad(channel, leaf, retain_graph=True)[0][0].square().sum(0) for channel in y)
            rows.append(energy / energy.sum())
    mean = torch.stack([row for row in rows if row.sum() > 0]).mean(0)
    mean = mean if net.convention == "luo" else mean.sqrt()
    return (mean / mean.sum()).double().numpy()


def same_layer(module: nn.Module, x: Tensor, layer: str, stated: str) -> bool:
    """Whether two names mean one tensor, such as a net's output and its last layer's."""
    if layer == stated:
        return True
    one, other = output_of(module, x, layer), output_of(module, x, stated)
    return (
        isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    )


def units_at(
    positions: Positions, center: tuple[float, ...], index: tuple[int, ...], exact: bool
) -> list[tuple[int, ...]]:
    """The units that a result may be about: the one of its index if that stands where it says, else the one that does.

    Where the centre is said not to be exact, it may be either: the index of a reversed map counts along the axes of the
    image."""

    def off(unit: tuple[int, ...]) -> float:
        return max(abs(a - b) for a, b in zip(positions.centre(unit), center, strict=True))

    known = len(index) == len(positions.grid) and all(i < side for i, side in zip(index, positions.grid, strict=True))
    if known and off(index) <= positions.slack:
        return [index]
    nearest = min(positions.units(), key=off)
    return [index] * (known and not exact) + [nearest] * (off(nearest) <= positions.slack)


Maps = dict[tuple[str, tuple[int, ...]], np.ndarray[Any, Any]]


def complaint(net: Net, module: nn.Module, x: Tensor, result: erfscope.Result, maps: Maps) -> str | None:
    """What is wrong with an ``ok`` result; None if it is right. ``maps`` keeps plain maps by layer and unit."""
    assert result.unit is not None
    assert result.map is not None
    exact = result.unit.center_exact and ASSUMED not in {finding.code for finding in result.findings}
    texts = []
    for positions in net.positions:
        if not same_layer(module, x[:1], result.layer, positions.layer):
            texts.append(f"layer {result.layer}, not {positions.layer}")
        elif not (units := units_at(positions, result.unit.center_px, result.unit.index, exact)):
            wanted = (
                positions.centre(result.unit.index) if len(result.unit.index) == len(positions.grid) else "elsewhere"
            )
            texts.append(
                f"{result.layer} {result.unit.index} at {result.unit.center_px} (exact: {exact}), not {wanted}"
            )
        elif exact and positions.exact is False:
            texts.append(f"centre {result.unit.center_px} is called exact, though branches disagree")
        else:
            difference = min(differences(net, module, x, result, positions, units, maps))
            if not difference <= TOLERANCE[net.dtype]:
                texts.append(f"map of {result.layer} {result.unit.index} is {difference:.1e} off")
            elif net.expected == "right" and positions.exact and not exact:
                texts.append(f"centre {result.unit.center_px} of {result.layer} is not known to be exact")
            else:
                return None
    return "; ".join(dict.fromkeys(texts)) or f"measured {result.layer}, whose units stand on nothing"


def differences(
    net: Net,
    module: nn.Module,
    x: Tensor,
    result: erfscope.Result,
    positions: Positions,
    units: list[tuple[int, ...]],
    maps: Maps,
) -> Iterator[float]:
    """How far the result's map is from the plain one of each unit, in relative L1."""
    assert result.map is not None
    for unit in units:
        key = (f"{positions.layer} {positions.grid}", unit)
        if key not in maps:
            maps[key] = plain_map(net, module, x, positions, unit)
        yield float(np.abs(result.map.values - maps[key]).sum())


def off_middle(net: Net, module: nn.Module, x: Tensor, result: erfscope.Result) -> str | None:
    """Whether another unit stands nearer to the middle of the input than the default one, where each has one centre."""
    assert result.unit is not None
    middle = [(side - 1) / 2 for side in net.size]
    for positions in net.positions if result.unit.center_exact else ():
        if positions.exact and same_layer(module, x[:1], result.layer, positions.layer):
            away = [
                max(abs(c - m) for c, m in zip(positions.centre(u), middle, strict=True)) for u in positions.units()
            ]
            own = max(abs(c - m) for c, m in zip(result.unit.center_px, middle, strict=True))
            if own > min(away) + positions.slack + 1e-6:
                return f"the unit at {result.unit.center_px} is not the nearest to {middle}"
    return None


def measure(net: Net, module: nn.Module, x: Tensor, **options: Any) -> list[erfscope.Result] | str:
    """Results of the middle unit and the first one, or why there are none."""
    more: dict[str, Any] = {"draws": "all"} if net.convention == "jacobian" else {}
    try:
        report = erfscope.sweep(
            module,
            images=x,
            unit=["centre", "corner"],
            convention=net.convention,
            dtype=net.dtype,
            measures="r50",
            **more,
            **options,
        )
    except ErfscopeError as error:
        return str(error)
    failed = [result.error or result.status for result in report if not result.ok]
    return failed[0] if failed else list(report)


def names_what_it_refuses(net: Net, module: nn.Module, text: str) -> bool:
    """Whether an error names a layer and the tokens."""
    names = {"output", *(name for name, _ in module.named_modules() if name)}
    words = {word.strip(".") for word in re.findall(r"[\w.\[\]]+", text)}
    return bool(names & words) and (net.tokens is None or str(net.tokens) in words)


RUNS = {"default": {"batch_size": 4}, "whole": {"batch_size": 4, "plain": True}}
#: Where images of a batch meet.
ALONE = {"one by one": {"batch_size": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_a_measurement_is_right_or_refused(net, monkeypatch):
    """The default and the plain path: each is plain autograd's map of the unit that stands where the result says."""
    module = net.build()
    x = pictures(net.channels, net.size, getattr(torch, net.dtype))
    wrong: list[str] = []
    maps: Maps = {}
    for name, options in (RUNS | ALONE if net.mixes_batch else RUNS).items():
        found = measure(net, module, x, **options)
        # The memory is planned in the first run alone, which takes a third of it.
        monkeypatch.setattr("erfscope.core.run.engine.batch.needs", lambda plan: [])
        if isinstance(found, str):
            if net.expected == "right":
                wrong.append(f"{name}: refused: {found}")
            elif not names_what_it_refuses(net, module, found):
                wrong.append(f"{name}: the refusal names no layer and tokens: {found}")
            continue
        texts = [finding.text for result in found for finding in result.findings]
        if net.expected == "noisy":
            if not any(re.search(r"random|differ|determin|state", text) for text in texts):
                wrong.append(f"{name}: ok, and not a word about runs that differ")
            continue
        wrong += [
            f"{name}: {text}" for result in found if (text := complaint(net, module, x, result, maps)) is not None
        ]
        if name == "default" and (text := off_middle(net, module, x, found[0])) is not None:
            wrong.append(f"{name}: {text}")
        if net.mixes_batch and not any(re.search(r"one image at a time", text) for text in texts):
            wrong.append(f"{name}: not a word about images that meet in a batch")
    assert not wrong, f"{net.claim}\n" + "\n".join(dict.fromkeys(wrong))


LOCAL = [net for net in NETS if net.local]


@pytest.mark.parametrize("net", LOCAL, ids=lambda net: net.name)
def test_the_table_says_where_units_stand(net):
    """Without attention a unit's gradient fills exactly the cell around its stated centre."""
    module = net.build()
    for part in module.modules():
        if hasattr(part, "mix"):
            part.mix = 0.0
    x = pictures(net.channels, net.size, torch.float64)[:1]
    for positions in net.positions:
        for unit in list(positions.units())[:: max(1, len(list(positions.units())) // 7)]:
            leaf = x.clone().requires_grad_(True)
            with sound_norms():
                y = positions.pick(output_of(module, leaf, positions.layer), unit)
            (g,) = torch.autograd.grad((y * torch.arange(1, y.shape[1] + 1)).sum(), leaf)
            seen = g[0].abs().sum(0).nonzero()
            box = [(float(axis.min()) + float(axis.max())) / 2 for axis in seen.T]
            assert box == pytest.approx(positions.centre(unit), abs=1e-9), (net.name, unit)
