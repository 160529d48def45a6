"""One measured unit: its map, its sizes, and the conditions under which they hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta

from erfscope.core.answer.figure_style import FigureKind
from erfscope.core.answer.maps.accumulator import MIN_GROUPS, MapAccumulator, Over, error_bar
from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray, Scale
from erfscope.core.answer.maps.hops import HopProfile
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.answer.measures import MEASURES, MeasureValue, with_errors
from erfscope.core.answer.measures.sizes import Sides, sides_of
from erfscope.core.answer.measures.values import of_axes
from erfscope.core.answer.outputs import Displayed, outputs
from erfscope.core.answer.positions import Positions
from erfscope.core.answer.timing import Timing, own_step, timing_of
from erfscope.core.images import KINDS
from erfscope.core.values.axes import COL, DEPTH, Axes
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.finding import Finding
from erfscope.core.values.model_facts import Weights
from erfscope.core.values.names import IMAGE, is_input
from erfscope.core.values.unit import Trf

if TYPE_CHECKING:
    from erfscope.core.answer.partial import PartialSums

T = TypeVar("T")
#: What a result has that is ok, or that was measured with the option for it, and else None: who reads it may use it
#: without asking, and a type checker knows what it is.
if TYPE_CHECKING:
    Known: TypeAlias = T | Any
else:
    Known = T | None

Status = Literal["ok", "degenerate", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """The input of the model."""

    size: tuple[int, ...]
    #: "image", a synthetic kind, "array", "tensor", "volume" or "sound".
    source: str
    n_images: int
    n_draws: int | str
    n_dead: int = 0
    #: Names of the images without a usable gradient, and of the files that could not be read.
    dead: tuple[str, ...] = ()
    sha256: str | None = None
    #: How the inputs were made, in a line: resize and crop, mean and std, and which of these were assumed.
    transform: str = ""
    #: The part of it that makes the pixels, and the part that scales them; "" if one step does everything.
    resize: str = ""
    scale: str = ""
    #: The text for the inputs, and its kind: a number of images, the name of one file, or the shape of a ready
    #: tensor.
    text: str = ""
    text_kind: Literal["count", "file", "tensor"] = "count"
    #: What the axes are, and how far apart the cells lie; None where nothing was measured.
    axes: Axes | None = None

    @property
    def stimuli(self) -> str:
        """What identifies the inputs: the kind by which they are drawn, with its version, or a hash."""
        is_drawn = self.source in KINDS
        return f"{self.source}, version {KINDS[self.source].version}" if is_drawn else f"{self.source} {self.sha256}"

    @property
    def noun(self) -> str:
        """What one input is called: image, volume, clip or sequence, and sound from files of it."""
        return "sound" if self.source == "sound" else (self.axes or Axes.of_rank(len(self.size) or 2)).noun


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRecord:
    """Which unit, and where its true centre is, in cells of the reference and in image pixels."""

    #: In the layer's map; where the unit has no place, () or one number along the axis that ``kind`` names.
    index: tuple[int, ...]
    #: () where the unit has no place, as the stride.
    center_px: tuple[float, ...]
    center_exact: bool
    stride_px: tuple[float, ...]
    #: The map of the layer that the unit belongs to, (C, *space).
    map_shape: tuple[int, ...] = ()
    #: "token", "query", "row", "class" or "vector", of which none has a place; "" of a map's unit.
    kind: str = ""

    @property
    def slug(self) -> str:
        """A text for file names, e.g. ``u3x3`` or ``token0``."""
        return (self.kind or "u") + "x".join(map(str, self.index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """How a result was computed, and how much was run."""

    #: "graph": the operations that the unit needs, each on the part that it needs, see :mod:`erfscope.core.graph.run`;
    #: "plain": the model itself, whole up to the layer.
    path: Literal["graph", "plain"]
    #: Why the model itself was run; "" if it was not.
    because: str
    #: Share of the multiply-adds up to the layer, and their number in 10^9.
    share: Annotated[float, Meta(ge=0, le=1)]
    gmacs: Annotated[float, Meta(ge=0)]
    #: Size of the part of the image that went in.
    input_size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The first image as it was measured beside the plain model in float64; see
    :func:`erfscope.core.run.additions.verification.with_verification`."""

    #: Relative L1 differences of the unit's channels and of its map, and what the dtype of the measurement explains.
    value: Annotated[float, Meta(ge=0)]
    map: Annotated[float, Meta(ge=0)]
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains both differences; not-a-number never does."""
        return self.value <= self.allowed and self.map <= self.allowed

    @property
    def text(self) -> str:
        """Both differences in one line."""
        verdict = "verified" if self.holds else "NOT VERIFIED"
        return (
            f"{verdict}: on the first image the unit's value differs by {self.value:.1e} and its map by {self.map:.1e}"
            f" (relative L1) from the plain model in float64; rounding explains {self.allowed:.0e}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Halo:
    """The input that tiles need beyond their own to give the layer's map of the whole image; see
    :func:`erfscope.tile`."""

    #: Pixels of the image before and after a tile, along each axis, for tiles that begin at multiples of the alignment.
    #: Empty where the fields of the units are not known, or differ from place to place.
    px: tuple[tuple[int, int], ...]
    alignment_px: tuple[int, ...]
    #: Why tiles differ from the whole image, each with what can be done about it; the halo is then exact but for that.
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPoints:
    """Where an operation that reads at given points, such as a deformable convolution, reads the first image for the
    unit."""

    #: What it is called, with its module.
    operation: str
    #: (points, axes) in pixels of the image, also beyond its borders.
    points_px: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Size of a model: parameters, and multiply-adds of one forward pass (None where they could not be counted)."""

    parameters: int
    gmacs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Displayed):
    """One unit of one layer of one model."""

    #: It names files in the folder of a report, and nowhere else.
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=200)]
    label: str
    model: str
    #: "degenerate" where the gradient is rounding noise or zero.
    status: Status
    #: Why it is not ok, without the label, which every output adds.
    error: str | None = None
    findings: tuple[Finding, ...] = ()
    weights: Weights
    #: Blocks inserted into the model and edits of it, as asked for, and the share of what blocks add (None is 1).
    insert: str | None = None
    alpha: float | None = None
    #: Step or epoch of a training at which it was measured, where that is known.
    step: int | None = None
    #: Id of the result of the same model without them, measured beside it.
    host: str | None = None
    input: InputRecord
    layer: str
    #: Whether erfscope chose the layer because the model declares none.
    layer_chosen: bool = False
    wrt: str = IMAGE
    unit: Known[UnitRecord]
    convention: str
    method: str
    scale: Scale
    trf: Known[Trf] = None
    #: The overlap of tiles; None if it was not asked for.
    halo: Known[Halo] = None
    #: Of each operation before the unit that reads at given points; None if they were not asked for.
    sampling_points: tuple[SamplingPoints, ...] | None = None
    #: Those that were asked for, and those that :meth:`compute` has added.
    measures: dict[str, MeasureValue] = field(default_factory=dict)
    se_over: Over = "images"
    map: Known[ErfMap] = None
    #: Sizes of the maps of all units of the layer, where they were asked for.
    positions: Positions | None = None
    #: Share of the map in each frame of a clip; None for other references.
    frame_mass: tuple[float, ...] | None = None
    #: Other tools' own numbers by their own rule, for the conventions that reproduce those tools.
    published: Mapping[str, Any] | None = None
    cost: Cost | None = None
    #: How it was computed; None if nothing was run.
    computed: Computed | None = None
    #: Where the reference is the input of a block on a graph that is no plain grid: the map by hops from the node
    #: nearest the unit.
    hops: HopProfile | None = None
    #: Of a map of removed nodes: Spearman's rank correlation with the gradient's map of the same images.
    rank_correlation: float | None = None
    #: Norm of the gradient relative to a random-sign draw; healthy models are near 1. None where it was not compared,
    #: since no operation on the way normalises, so that it cannot be rounding noise.
    gradient_ratio: float | None = None
    #: The check of the gradient by forward passes with noise; None if it was not asked for.
    trust: Known[Trust] = None
    #: The comparison of the first image with the whole model; None if it was not asked for.
    verification: Known[Verification] = None
    #: Other options that results must share, where they are not the default, by name.
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    dtype: str = "float32"
    #: The dtype of autocast, if it was asked for.
    amp_dtype: str | None = None
    device: str = "cpu"
    #: Versions of the packages it was measured with; None where nothing was measured.
    versions: Mapping[str, str | None] | None = None
    #: Of its measurement; of all of them where several layers or references were measured by the same passes.
    seconds: float = 0.0
    #: By group of images the magnitudes of the contributions in all; of several inputs alone.
    masses: Mapping[int, float] = field(default_factory=dict, repr=False, compare=False)
    #: The sums by groups, for measures that are asked for later; None where they are large, and of a stored whole run.
    sums: MapAccumulator | None = field(default=None, repr=False, compare=False)
    #: The sums of a shard or of a stopped run; None for a whole run.
    part: PartialSums | None = None
    #: The first image as shown to the model, uint8 (H, W, C), for overlays.
    picture: Any = None

    def __post_init__(self) -> None:
        # Of its own: what is computed later is not that of another result.
        object.__setattr__(self, "measures", dict(self.measures))

    def __getitem__(self, name: str) -> MeasureValue:
        """A measure by name, e.g. ``result["r50"].se``; one that was not asked for is computed, see :meth:`compute`.

        Raises:
            ErfscopeError: no such measure, or one that was not stored and cannot be had from the map alone.
            MeasurementError: the model failed, or gave nothing that can be measured; the text is that of ``error``.
        """
        if name not in self.measures and name not in MEASURES:
            raise unknown("measure", name, self.measures or MEASURES, where=self.label)
        self.compute([name])
        found = self.measures.get(name)
        if found is not None and (self.ok or found.value is not None):
            return found
        if found is None and self.measures:
            raise ErfscopeError(
                f"{name!r} of {self.label} was not measured; it has {', '.join(self.measures)}: add it to measures="
            )
        raise self.failure(f"has no {name}")

    def compute(self, names: str | Iterable[str]) -> None:
        """Measure the map by these names too, as far as that was not done.

        Errors need the sums by groups of images. Without these, as in a stored report, what is computed has none.

        Args:
            names: In ``MEASURES``.

        Raises:
            ErfscopeError: an unknown measure.
        """
        names = [names] if isinstance(names, str) else names
        sums = self._averages
        missing = of_axes((name for name in names if name not in self.measures), self.axes)
        if missing and self.map is not None:
            more: dict[str, Any] = {} if sums is None else {"groups": sums.groups, "spread": sums.spread}
            self.measures.update(with_errors(self.map, () if sums is None else sums.leave_one_out(), missing, **more))

    @property
    def _averages(self) -> MapAccumulator | None:
        return self.sums if self.part is None else self.part.average

    def errors_of(self, compute: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """What stands behind ± of numbers that a function makes of the map, over its groups of images, or random draws.

        Args:
            compute: The magnitudes of a map (*space), of any scale -> numbers of any shape.

        Returns:
            Of the shape of those numbers, in their unit; not-a-number with fewer than four groups, or without the sums
            by groups, as in a stored report.

        Raises:
            MeasurementError: there is no map.
        """
        if self.map is None:
            raise self.failure("has no map")
        others = () if self._averages is None else self._averages.leave_one_out()
        numbers = [compute(self.map.magnitude), *(compute(np.abs(values)) for values in others)]
        groups = zip(*(np.asarray(each, dtype=np.float64).ravel().tolist() for each in numbers), strict=True)
        errors = [error_bar(value, without) if len(without) >= MIN_GROUPS else math.nan for value, *without in groups]
        return np.array(errors).reshape(np.shape(numbers[0]))

    def failure(self, lacks: str) -> MeasurementError:
        """The error to raise if a result that could not be measured is asked for something.

        Args:
            lacks: What it lacks, such as ``"has no map"``.
        """
        if self.error is None:
            return MeasurementError(f"{self.label} {lacks}: it was not measured or not stored")
        return MeasurementError(f"{self.label}: {self.error} (the result's status is {self.status!r}, so it {lacks})")

    @property
    def ok(self) -> bool:
        """Whether the numbers can be used."""
        return self.status == "ok"

    @property
    def input_axes(self) -> Axes:
        """The axes of the input; where nothing was measured, those of any input of so many axes."""
        return self.input.axes or Axes.of_rank(len(self.input.size) or 2)

    @property
    def axes(self) -> Axes:
        """The axes of the reference: what they are called, and what distances are in."""
        space = self.trf.reference_px if self.trf is not None else () if self.unit is None else self.unit.center_px
        own = self.input_axes
        return own if is_input(self.wrt) else own.inner(space or (1, 1), self.input.size)

    @property
    def sides(self) -> Sides:
        """The sides that sizes are compared with: of the reference and of the TRF."""
        axes, trf = self.axes, self.trf
        kept, spacing = axes.measured, axes.only(axes.measured).spacing
        reference = self.input.size if trf is None else trf.reference_px
        field = None if trf is None or trf.is_global else [trf.size_px[axis] for axis in kept]
        return sides_of([reference[axis] for axis in kept], field, spacing)

    @property
    def own_time(self) -> tuple[float, float] | None:
        """First and last cell of the unit's own step along the axis of time; None where there is no such axis."""
        if self.trf is None or self.unit is None:
            return None
        return own_step(self.trf, self.axes, self.unit.index, self.unit.map_shape[1:])

    @property
    def timing(self) -> Known[Timing]:
        """Where the unit stands in time and what it waits for; None for references without an axis of time."""
        step = self.own_time
        return None if self.trf is None or step is None else timing_of(self.trf, self.axes, step, self.map)

    @property
    def is_in_plane(self) -> bool:
        """Whether sizes and shares are those of a clip's map summed over time: distances are over rows and columns."""
        return self.axes.is_in_plane

    def scalars(self, prefix: str = "erf/") -> dict[str, float]:
        """Measures with a number, for a training log."""
        return {f"{prefix}{name}": float(m) for name, m in self.measures.items() if isinstance(m.value, int | float)}

    def figure(self, path: Any = None, *, kind: FigureKind | None = None, **style: Any) -> Any:
        """This result as a matplotlib figure, saved to ``path`` (.png, .svg or .pdf) if one is given.

        Args:
            path: A file of that name is replaced.
            kind: A name in ``erfscope.show.figures.kinds.FIGURES``, which says what each kind shows and needs. If None,
                ``"positions"`` where the sizes of every unit were measured, else ``"panel"``.
            **style: ``scale``, ``cmap``, ``contours`` and ``width``, as for :meth:`erfscope.Report.figure`.

        Raises:
            ErfscopeError: an unknown kind or style, or a kind that this result cannot be drawn as; the text says what
                is missing.
        """
        return outputs().figure([self], kind, path=path, **style)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write this result as a report of its own: a folder, or one file whose suffix decides.

        Args:
            path: Where to.
            **options: As for :meth:`erfscope.Report.save`, e.g. ``force=True``.

        Raises:
            ErfscopeError: as for :meth:`erfscope.Report.save`.
        """
        outputs().save(self, path, **options)

    def __repr__(self) -> str:
        return str(outputs().line(self))


def with_provenance(result: Result, versions: Mapping[str, Any]) -> Result:
    """The result with the versions it was measured with, and a map that says by itself where it comes from."""
    if result.map is None:
        return replace(result, versions=dict(versions))
    about = ("model", "layer", "wrt", "convention", "method", "options", "seed", "dtype", "device", "insert", "alpha")
    records: dict[str, Any] = {"weights": result.weights, "input": result.input, "unit": result.unit}
    provenance: dict[str, object] = {name: getattr(result, name) for name in about}
    for name, record in records.items():
        provenance[name] = (
            None if record is None else {key: getattr(record, key) for key in record.__dataclass_fields__}
        )
    erf = replace(result.map, provenance={**provenance, "versions": dict(versions)})
    return replace(result, versions=dict(versions), map=erf)


def slug(*parts: str) -> str:
    """A name that is safe for files and addresses, e.g. ``resnet18-layer4-u3x3``."""
    words = [re.sub(r"[^A-Za-z0-9._]+", "_", part).strip("._") or "x" for part in parts if part]
    return "-".join(words)[:150]


def image_cell(result: Result) -> float | None:
    """Image pixels per cell of the reference; None where the reference is the image or no plane of it, or where there
    is no map."""
    if is_input(result.wrt) or result.map is None or result.axes.names[-1:] != (COL,) or DEPTH in result.axes.names:
        return None
    cells = result.map.cell_px[-2:]
    return float(np.prod(cells) ** (1 / len(cells)))
