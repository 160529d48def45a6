"""Every layer of a model with what its units can see at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from erfscope.adapter import IMAGE
from erfscope.errors import ErfscopeError
from erfscope.serialise import fields, plain
from erfscope.subject import Subject
from erfscope.trf.field import Trf
from erfscope.unit import UnitWord, resolve

SCHEMA = "erfscope.layers/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer."""

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
    rows: tuple[LayerRow, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        entries = []
        for row in self.rows:
            trf = {**fields(row.trf), "global": row.trf.is_global}
            entry = {"name": row.name, "shape": row.shape, "stage": row.stage, "unit": row.unit, "trf": trf}
            entries.append({**entry, "stride_px": row.trf.stride_px, "center_px": row.trf.center_px})
        head = {"schema": SCHEMA, "model": self.model, "input_size": self.input_size, "default_layer": self.default_layer, "wrt": self.wrt}
        document: dict[str, Any] = plain({**head, "layers": entries})
        return document


def layer_table(subject: Subject, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = IMAGE) -> LayerTable:
    """The layers that can be asked for.

    Args:
        subject: The model.
        layer: Only this one.
        unit: The unit whose field is given.
        wrt: Reference of sizes and centres; layers that do not depend on it are left out.

    Raises:
        ErfscopeError: unknown layer or reference, or a unit outside the map.
    """
    names = [layer] if layer is not None else [entry.name for entry in subject.recording.layers if not entry.name.endswith(":in")]
    rows = []
    for name in names:
        entry = subject.layer(name)
        try:
            index = resolve(unit, entry.shape[2:], subject.recording.default_unit(name, wrt), layer=name)[0].index
            trf = subject.trf(name, index, wrt)
        except ErfscopeError:
            # Without a reference every layer depends on the image; with one, those before it do not.
            if layer is not None or wrt == IMAGE:
                raise
            continue
        rows.append(LayerRow(name=name, shape=tuple(entry.shape[1:]), stage=entry.stage, unit=index, trf=trf))
    return LayerTable(
        model=subject.label, input_size=subject.adapter.preprocess.size, default_layer=_default(subject), wrt=wrt, rows=tuple(rows)
    )


def _default(subject: Subject) -> str | None:
    try:
        return subject.adapter.default_layer
    except ErfscopeError:
        return None


def usable(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Layers with more than one position."""
    return [row for row in rows if all(side > 1 for side in row.shape[1:])]
