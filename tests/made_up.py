"""Results that no model was run for: round numbers, so that what is shown of them is the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from erfscope import MEASURES, ErfMap, Report, Result, Trf
from erfscope.core import MeasureValue
from erfscope.core.answer.maps.accumulator import error_bar
from erfscope.core.answer.result import Cost, Halo, InputRecord, UnitRecord
from erfscope.core.values.model_facts import Weights

VERSIONS = {"versions": {"erfscope": "1.2.3", "torch": "2.9.0", "timm": "1.0.30", "captum": "0.9.0"}}
#: (value, standard error) unless a test says otherwise.
SIZES = {
    "r50": (62.0, 0.6),
    "context_r50": (65.4, 0.5),
    "r90": (105.2, 0.4),
    "center_share": (0.065, 0.0014),
    "far_mass": (0.318, 0.006),
    "erf_trf": (0.488, None),
}
#: Of what the groups of pictures differ by; its jackknife error is the root of 3.
PATTERN = (-1.0, -1.0, 1.0, 1.0)


def measured(name: str, value: float | str | None, se: float | None = None, *, side: float = 224) -> MeasureValue:
    """A measure whose groups have exactly this error, on a reference of this side."""
    kind = MEASURES[name].kind
    groups = (
        ()
        if se is None or not isinstance(value, float)
        else tuple(value + step * se / error_bar(0.0, PATTERN) for step in PATTERN)
    )
    ratio = value / side if kind == "radius" and isinstance(value, float) else None
    return MeasureValue(value=value, se=se, leave_one_out=groups, kind=kind, of_input=ratio)


def box_field(box: Sequence[tuple[int, int]], reference: Sequence[int], *, stride: float = 1, **more: Any) -> Trf:
    """The field of a unit that stands in the middle of its box, which may reach beyond the reference."""
    box, size = tuple(box), tuple(last - first + 1 for first, last in box)
    base = Trf(
        size_px=size,
        box_px=box,
        stride_px=(float(stride),) * len(box),
        center_px=tuple((first + last) / 2 for first, last in box),
        center_exact=True,
        local_size_px=size,
        local_box_px=box,
        exact=True,
        reference_px=tuple(reference),
    )
    return replace(base, **more)


def field(size: int = 435, *, stride: int = 32, reference: int = 224, by: str | None = None, exact: bool = True) -> Trf:
    """The field of the unit in the middle."""
    centre, half = reference / 2 - 16, size // 2
    box = ((int(centre) - half, int(centre) + half),) * 2
    everything = ((0, reference - 1),) * 2
    return Trf(
        size_px=(size, size) if by is None else (reference, reference),
        box_px=box if by is None else everything,
        stride_px=(float(stride),) * 2,
        center_px=(centre, centre),
        center_exact=True,
        global_by=by,
        local_size_px=(size, size),
        local_box_px=box,
        exact=exact,
        reference_px=(reference, reference),
    )


def pyramid(centre: float, side: int) -> np.ndarray[Any, Any]:
    """A map of whole numbers that falls off with the larger of the two distances, divided by its sum."""
    rows = np.arange(side, dtype=np.float64)
    distance = np.maximum(np.abs(rows[:, None] - centre), np.abs(rows[None, :] - centre))
    heights = np.maximum(side // 2 - distance, 0.0)
    return heights / heights.sum()


def result(
    label: str = "resnet18", *, sizes: dict[str, tuple[Any, Any]] | None = None, trf: Trf | None = None, **changes: Any
) -> Result:
    """A result of resnet18's last layer on four images of leaves, with some of it changed."""
    trf = trf or field()
    side, numbers = trf.reference_px[0], {**SIZES, **(sizes or {})}
    base = Result(
        id=label,
        label=label,
        model=label,
        status="ok",
        weights=Weights(source="pretrained", sha256="0123456789abcdef", origin="timm/resnet18.a1_in1k"),
        input=InputRecord(
            size=(224, 224),
            source="leaves",
            n_images=4,
            n_draws=2,
            sha256="ab" * 32,
            text="4 synthetic images (dead leaves, version 1, seed 0)",
        ),
        layer="layer4",
        unit=UnitRecord(
            index=(3, 3), center_px=trf.center_px, center_exact=True, stride_px=trf.stride_px, map_shape=(512, 7, 7)
        ),
        convention="jacobian",
        method="gradient",
        scale="amplitude",
        trf=trf,
        measures={name: measured(name, *pair, side=side) for name, pair in numbers.items()},
        map=ErfMap(values=pyramid(trf.center_px[0], side), center_px=trf.center_px, stride_px=trf.stride_px, trf=trf),
        cost=Cost(parameters=11_689_512, gmacs=1.81),
    )
    return replace(base, **changes)


def broken(label: str = "broken") -> Result:
    """A model that failed."""
    nothing = replace(result().input, n_images=0, n_draws=0, sha256=None)
    empty = {"measures": {}, "map": None, "trf": None, "unit": None, "cost": None, "layer": "", "input": nothing}
    return replace(result(label), status="error", error="Input height (224) doesn't match model (256)", **empty)


def report(*results: Result, **settings: Any) -> Report:
    """A report of these."""
    return Report(results=results, settings={"unit": "centre", **settings}, environment=VERSIONS)


VIT = {
    "r50": (7.3, 0.05),
    "context_r50": (88.0, 1.1),
    "r90": (96.0, 2.0),
    "center_share": (0.76, 0.008),
    "far_mass": (0.144, 0.005),
    "erf_trf": (None, None),
}


def vit(label: str = "vit_small_patch16_224", **changes: Any) -> Result:
    """A result of a transformer."""
    changes = {"layer": "blocks.11", "sizes": VIT, "cost": Cost(parameters=22_050_664, gmacs=4.6), **changes}
    return result(label, trf=field(16, stride=16, by="blocks.0.attn"), **changes)


def four() -> Report:
    """A comparison of four, one of which failed."""
    large = {**SIZES, "r50": (81.5, 1.3), "context_r50": (84.0, 1.2), "r90": (118.0, 0.9), "far_mass": (0.52, 0.011)}
    name = "ConvNeXt-T with our very large kernels, 31x31"
    return report(
        result(), vit(), broken("swin_base"), result(name, sizes=large, layer="stages.3", trf=field(920, exact=False))
    )


def stages() -> Report:
    """A sweep over the stages of two models."""
    rows = []
    for depth, (stride, trf, r50) in enumerate([(4, 43, 8.0), (8, 99, 16.7), (16, 211, 44.0), (32, 435, 62.0)], 1):
        unit = UnitRecord(
            index=(28 // depth,) * 2, center_px=(96.0, 96.0), center_exact=True, stride_px=(float(stride),) * 2
        )
        sizes = {**SIZES, "r50": (r50, r50 / 50), "r90": (2 * r50, r50 / 40), "far_mass": (r50 / 200, 0.01)}
        rows.append(result(layer=f"layer{depth}", sizes=sizes, unit=unit, trf=field(trf, stride=stride)))
    rows += [
        vit("vit_tiny", layer=f"blocks.{block}", sizes={**VIT, "r90": (8.0 * block + 8, 0.5)}) for block in (0, 6, 11)
    ]
    return report(*(replace(row, id=f"{row.id}-{place}") for place, row in enumerate(rows)), layer="stages")


def host_and_block() -> Report:
    """A model, and the same with a block inserted, with the halos of their tiles."""
    wider = {**SIZES, "r50": (66.0, 0.7), "far_mass": (0.35, 0.007)}
    block = result(
        "resnet18 + gcn, alpha 0.5", sizes=wider, model="resnet18", insert="gcn@layer3", alpha=0.5, host="resnet18"
    )
    halo = Halo(px=((217, 186), (217, 186)), alignment_px=(32, 32))
    blocked = replace(halo, px=((217, 186), (250, 219)), blockers=("attention (layer3.gcn) compares all positions",))
    return report(result(halo=halo), replace(block, cost=Cost(parameters=11_820_584, gmacs=1.84), halo=blocked))


def fallback() -> Report:
    """A comparison in which every model fell back to random weights."""
    weights = Weights(source="random", seed=0, reactivated=8, fallback=True, reason="hub unreachable", sha256="fe" * 32)
    return report(result(weights=weights), vit(weights=replace(weights, reactivated=0)))


def inner() -> Report:
    """One result with respect to a feature map."""
    trf = field(27, stride=4, reference=56)
    erf = ErfMap(
        values=pyramid(trf.center_px[0], 56),
        center_px=trf.center_px,
        stride_px=trf.stride_px,
        cell_px=(4.0, 4.0),
        trf=trf,
    )
    sizes = {**SIZES, "r50": (15.5, 0.2), "context_r50": (16.4, 0.2), "r90": (26.3, 0.1)}
    return report(result(wrt="layer1", trf=trf, map=erf, sizes=sizes))
