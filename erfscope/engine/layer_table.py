"""Every layer of a model with what its units can see at all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import Trf, UnitWord, resolve_units
from erfscope.results.json_values import fields, plain

SCHEMA = "erfscope.layers/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One unit of one layer."""

    name: str
    #: (C, *space) of its map.
    shape: tuple[int, ...]
    #: Whether the model's authors count it as a stage.
    stage: bool
    unit: tuple[int, ...]
    trf: Trf


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """The layers of one model at one input size, in order of execution."""

    model: str
    input_size: tuple[int, ...]
    default_layer: str | None
    wrt: str
    #: One per layer and unit.
    rows: tuple[LayerRow, ...]
    #: What a reader has to know besides.
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        entries = []
        for row in self.rows:
            trf = {**fields(row.trf), "global": row.trf.is_global, "clipped_box_px": row.trf.clipped_box_px}
            entry = {"name": row.name, "shape": row.shape, "stage": row.stage, "unit": row.unit, "trf": trf}
            entries.append(
                {
                    **entry,
                    "stride_px": row.trf.stride_px,
                    "center_px": row.trf.center_px,
                    "offset_px": row.trf.offset_px,
                }
            )
        head = {
            "schema": SCHEMA,
            "model": self.model,
            "input_size": self.input_size,
            "default_layer": self.default_layer,
            "wrt": self.wrt,
        }
        document: dict[str, Any] = plain({**head, "notes": self.notes, "layers": entries})
        return document


def layer_table(
    model: LoadedModel, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = IMAGE
) -> LayerTable:
    """The layers that can be asked for.

    Args:
        model: The model.
        layer: Only this one.
        unit: The units whose TRFs are given, one row each.
        wrt: Reference of sizes and centres; layers that do not depend on it are left out, and a note counts them.

    Raises:
        ErfscopeError: unknown layer or reference, nothing that depends on the reference, or a unit outside the map.
    """
    entries = [model.layer(layer)] if layer is not None else model.recording.layers
    rows: list[LayerRow] = []
    unseen: dict[str, ErfscopeError] = {}
    for entry in entries:
        try:
            centre = model.recording.default_unit(entry.name, wrt)
        except ErfscopeError as error:
            unseen[entry.name] = error
            continue
        shape = tuple(entry.shape[1:])
        for index in (found.index for found in resolve_units(unit, shape[1:], centre, layer=entry.name)):
            trf = model.trf(entry.name, index, wrt)
            rows.append(LayerRow(name=entry.name, shape=shape, stage=entry.stage, unit=index, trf=trf))
    if unseen and not rows:
        # What is wrong with the first is wrong with all: the name of the reference, say.
        raise next(iter(unseen.values()))
    default: str | None = None
    with contextlib.suppress(ErfscopeError):
        default = model.default_layer
    return LayerTable(
        model=model.label,
        input_size=model.adapter.preprocess.size,
        default_layer=default,
        wrt=wrt,
        rows=tuple(rows),
        notes=(*_notes(list(unseen), wrt), *filter(None, [model.needed_numbers()])),
    )


def _notes(unseen: Sequence[str], wrt: str) -> tuple[str, ...]:
    if not unseen:
        return ()
    some = ", ".join(unseen[:3]) + (", ..." if len(unseen) > 3 else "")
    count = "1 layer does" if len(unseen) == 1 else f"{len(unseen)} layers do"
    return (f"{count} not depend on {'the image' if wrt == IMAGE else wrt}, so there is no row for {some}",)


def overview(table: LayerTable) -> list[LayerRow]:
    """Rows of stages, blocks and the default layer, of all layers where there are none of these; without maps of one
    position.

    A block is the outermost numbered item inside a stage, or of a model: ``layer1.0``, but not
    ``layer2.0.downsample.0``."""
    usable = [row for row in table.rows if all(side > 1 for side in row.shape[1:])]
    stages = {row.name for row in usable if row.stage}

    def is_block(name: str) -> bool:
        *above, last = name.split(".")
        numbered = (".".join(above[: depth + 1]) for depth, part in enumerate(above) if part.isdigit())
        return last.isdigit() and "downsample" not in above and all(outer in stages for outer in numbered)

    shown = stages | {row.name for row in usable if is_block(row.name)}
    return [row for row in usable if not shown or row.name in {*shown, table.default_layer}]
