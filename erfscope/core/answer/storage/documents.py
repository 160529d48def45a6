"""The types of a stored report: results are read by them, and ``docs/hooks/schemas.py`` writes
``schema/report-1.json`` from them.

Records are stored as they are. Those here hold more than the record that they are made of, or their arrays lie in
another file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from erfscope.core.answer.maps.accumulator import GROUPS, Over
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.answer.measures.table import Kind, Value
from erfscope.core.answer.positions import BorderEffect
from erfscope.core.answer.result import Result
from erfscope.core.answer.timing import Timing

Count = Annotated[int, Meta(ge=0)]
#: From 1.
Number = Annotated[int, Meta(ge=1)]


class StoredMeasure(Struct, frozen=True, kw_only=True, rename={"unit": "in"}):
    """One measure, in cells of the reference."""

    value: Value
    se: float | None
    se_over: Over | None
    unit: str
    kind: Kind
    #: value / S, or value / S^2 for an area, S = sqrt(H W) being the side of the reference; null for other kinds.
    of_input: float | None
    #: The same with the side of the theoretical receptive field, clipped nowhere; null too where that is global.
    of_trf: float | None
    #: Values without one group of images (or draws) each.
    leave_one_out: Annotated[tuple[float, ...], Meta(max_length=GROUPS)]
    #: The value in pixels of the image, where the reference is not the image.
    image_px: float | UnsetType | None = UNSET


class StoredDifference(Struct, frozen=True, kw_only=True):
    """A measure minus that of another result, and its standard error over the same images."""

    value: float
    se: float | None


class StoredHops(Struct, frozen=True, kw_only=True):
    """The map by hops from the node nearest the unit."""

    #: Share of the mass at 0, 1, 2, ... hops.
    mass: tuple[float, ...]
    #: Share of the mass on nodes that no path leads to.
    unreachable: float
    #: The mass itself, before it was divided.
    total: float
    mean_hop: float | None


class StoredMap(Struct, frozen=True, kw_only=True):
    """The map that lies in the map file."""

    cell_px: tuple[float, ...]
    shape: tuple[int, ...]


class StoredPositions(Struct, frozen=True, kw_only=True):
    """The sizes of the maps of all units of the layer, in cells of the reference; those of each unit lie in the map
    file."""

    #: Of the layer's map.
    shape: tuple[int, ...]
    #: Units whose maps have no size, since they have no gradient beyond rounding.
    without_gradient: Count
    #: Groups of units, of each of which a gradient is taken for each draw and batch: as many as units, if none share
    #: one.
    passes: Count
    #: Why units whose TRFs do not overlap did not share gradients; "" if they did.
    alone: str
    r50: BorderEffect
    context_r50: BorderEffect


class StoredTrust(Struct, frozen=True, kw_only=True):
    """The check of the gradient by forward passes with noise, and the changes that it follows from."""

    #: The energy that noise finds over that of the gradient, with its standard error; null where no image has a
    #: gradient.
    ratio: float | None
    se: float | None
    #: Whether the gradient is not the model's derivative.
    disagrees: bool
    #: The sigma at which the energy of a change has moved by a tenth; null where that is beyond the largest one tried.
    linear_to: float | None
    measured: Trust


class StoredSums(Struct, frozen=True, kw_only=True):
    """The state of a shard, or of a stopped run; its sums lie in the map file."""

    #: Which of the run's shards this is, and of how many; null where the run was stopped, and is no shard.
    number: Number | None
    of: Number | None
    #: Whether the run was stopped before the last image.
    stopped: bool
    #: Images of the whole run, and how many of them were seen here.
    n_all: Number
    seen: Count
    #: Indices of the images without a gradient, with one that is NaN, and of those that could not be read.
    dead: tuple[Count, ...]
    nan: tuple[Count, ...]
    #: Why gradients are NaN, if no image has another.
    nan_cause: str | None
    #: Why the gradients of all images are zero, where an operation says so.
    zero_cause: str | None
    unreadable: tuple[Count, ...]
    #: Names of the lost images, by index.
    names: Mapping[int, str]
    #: Images in the sums.
    n_used: Count
    #: Whether a contribution was found outside the theoretical receptive field.
    leaked: bool
    #: Of a run that ends at an error: the images of each look at it, and the variance of r50 then.
    looks: tuple[tuple[Count, float], ...]
    #: Where the sums lie in the reference.
    box: tuple[tuple[int, int], ...]
    #: How many contributions each group counts.
    groups: Mapping[int, Annotated[float, Meta(gt=0)]]
    #: Gradient norm over that of a random-sign draw, from the first image that has one.
    ratio: float | None
    #: The text for the images of the whole run.
    text: str
    #: The measures asked for.
    measures: tuple[str, ...]


#: Fields of a stored result, in their order.
_NAMES = """
    id label model status error findings weights insert alpha host step input layer
    layer_chosen wrt unit convention scale method options seed dtype amp_dtype
    device gradient_ratio hops rank_correlation trf halo sampling_points measures in_plane
    differences frame_mass timing published cost
    computed positions trust verification map map_file map_sha256 shard masses versions seconds
""".split()  # noqa: SIM905
#: Fields whose type differs from that of the result's field.
_OTHER: dict[str, Any] = {
    "hops": StoredHops | None,
    "measures": Mapping[str, StoredMeasure],
    "in_plane": bool,
    # Left out where there is no axis of time.
    "timing": Timing | UnsetType,
    "differences": Mapping[str, str | StoredDifference] | None,
    "positions": StoredPositions | None,
    "trust": StoredTrust | None,
    "map": StoredMap | None,
    "map_file": str | None,
    "map_sha256": str | None,
    "shard": StoredSums | None,
    # Left out where the model takes one input.
    "masses": Mapping[int, Annotated[float, Meta(ge=0)]] | UnsetType,
    "seconds": float,
}
#: Fields that are stored as they are.
SAME = [name for name in _NAMES if name not in _OTHER]
_TYPES = {**get_type_hints(Result, localns={"PartialSums": Any}, include_extras=True), **_OTHER}
_FIELDS = [(name, _TYPES[name], *([UNSET] if name in ("masses", "timing") else [])) for name in _NAMES]
#: One unit of one layer of one model; see :class:`erfscope.core.answer.result.Result`.
StoredResult: Any = defstruct(
    "StoredResult",
    _FIELDS,
    frozen=True,
    kw_only=True,
    rename={"findings": "warnings"},
    namespace={"__doc__": Result.__doc__},
)


class StoredReport(Struct, frozen=True, kw_only=True):
    """A report; each of its results is read by itself, as a :class:`StoredResult`."""

    schema: str
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: tuple[Mapping[str, Any], ...]
