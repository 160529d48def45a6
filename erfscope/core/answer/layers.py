"""The layers of a model with what their units can see at all: the records of ``erfscope layers``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from erfscope.core.answer.json_values import fields, to_json
from erfscope.core.answer.outputs import Displayed, outputs
from erfscope.core.values.axes import Axes
from erfscope.core.values.unit import Trf, size_text

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
    #: Whether ``--layer stages`` measures it: a stage or, of a model that declares none, an outermost module.
    part: bool = False
    #: What the unit is where it has no place; "" of a map's unit.
    kind: str = ""
    #: Its reference where the model takes several inputs; "" where the table's is.
    wrt: str = ""
    #: Its place in the order of execution.
    order: int = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerTable(Displayed):
    """The layers of one model at one input size, in order of execution. It prints as ``erfscope layers`` does."""

    model: str
    input_size: tuple[int, ...]
    default_layer: str | None
    wrt: str
    #: One per layer and unit.
    rows: tuple[LayerRow, ...]
    #: What a reader has to know besides.
    notes: tuple[str, ...] = ()
    #: The units without a place of the default layer and of what the model returns, as ``--unit`` takes them, with
    #: their layer; none in a table of one layer.
    without_place: tuple[tuple[str, str], ...] = ()
    #: Those of the input.
    axes: Axes = field(default_factory=lambda: Axes.of_rank(2))

    @property
    def has_several_inputs(self) -> bool:
        """Whether each row has a reference of its own."""
        return any(row.wrt for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        entries = []
        for row in self.rows:
            trf = {**fields(row.trf), "global": row.trf.is_global, "clipped_box_px": row.trf.clipped_box_px}
            entry = {
                "name": row.name,
                "shape": row.shape,
                "stage": row.stage,
                "part": row.part,
                "unit": row.unit,
                "kind": row.kind,
                "trf": trf,
                **({"wrt": row.wrt} if row.wrt else {}),
            }
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
            "weights": "any",
            "without_place": [{"unit": unit, "layer": layer} for unit, layer in self.without_place],
        }
        document: dict[str, Any] = to_json({**head, "notes": self.notes, "layers": entries})
        return document

    def to_dataframe(self) -> Any:
        """The rows as a pandas data frame, with the layer as its index.

        Raises:
            ErfscopeError: pandas is not installed.
        """
        return outputs().frame(self)

    def overview(self) -> list[LayerRow]:
        """Rows of stages, blocks, modules around them and the default layer, of all layers where there are none of
        these; without maps of one position.

        A block is the outermost numbered item inside a stage, or of a model: ``layer1.0``, but not
        ``layer2.0.downsample.0``."""
        usable = [row for row in self.rows if all(side > 1 for side in row.shape[1:])]
        stages = {row.name for row in usable if row.stage}

        def is_block(name: str) -> bool:
            # Of a module that several inputs share each call is a block.
            *above, last = name.partition("@")[0].split(".")
            numbered = (".".join(above[: depth + 1]) for depth, part in enumerate(above) if part.isdigit())
            return last.isdigit() and "downsample" not in above and all(outer in stages for outer in numbered)

        shown = stages | {row.name for row in usable if is_block(row.name)}
        if shown and not stages:
            around = {name[:place] for name in shown for place, letter in enumerate(name) if letter == "."}
            shown |= around | {row.name for row in usable if row.part}
        return [row for row in usable if not shown or row.name in {*shown, self.default_layer}]

    def __repr__(self) -> str:
        return f"<{self.model} at {size_text(self.input_size)}: {len(self.rows)} layers and units>"
