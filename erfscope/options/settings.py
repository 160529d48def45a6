"""Every option, declared once: its type, its default, its limits, and what it means for two results to differ in it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from erfscope.attribution.convention import convention_of
from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.input_size import Size
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import is_every_unit
from erfscope.parallel.shard import parse

DTYPES = ("float32", "float64", "bfloat16", "float16")
#: Findings that make a result unusable unless they are accepted.
ACCEPTABLE = ("gradient_disagrees",)
#: Samples where none were asked for: synthetic stimuli and directories.
SAMPLES = 20
#: What PyTorch's generators take.
SEED_LIMIT = 2**63
#: Images that --until-se may add up to, where there is no end to them.
UNTIL_SE_LIMIT = 1000
#: More images, and draws per image, than anybody needs; each has a name, or a map of its own.
SAMPLES_LIMIT, DRAWS_LIMIT = 10_000_000, 100_000
#: More processes than any machine reads images with.
WORKERS_LIMIT = 1024


class Building(TypedDict, total=False):
    """Options that say how a model is built."""

    checkpoint: str | Path | None
    input_size: Size | Sequence[Size] | None
    in_chans: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    model_kwargs: Mapping[str, object] | None
    #: Also read files that may run code: pickled checkpoints, exported programs as they are.
    unsafe_load: bool
    #: Image -> tensor (C, H, W), instead of the model's own transform.
    transform: Callable[..., Any] | None
    #: "NCHW", "NHWC" or "NLC": how every layer is held, whatever the operations say of its positions.
    layout: str | None
    #: With layout "NLC": tokens before those of the map.
    prefix_tokens: int | None
    #: What tables and figures call the model.
    label: str | None
    #: Blocks to insert: "BLOCK@LAYER:k=v", or (block, layer) where the block is a module or what makes one; one or
    #: several.
    insert: Any


class Options(Building, total=False):
    """Every option is the command line's of the same name, with underscores. ``erfscope analyze --help`` describes
    each."""

    #: Image files, directories, globs; uint8 arrays (H, W, 3) or PIL images; a ready tensor (B, C_in, *space).
    images: Any
    #: Another name of images.
    image: Any
    #: Kind of synthetic stimulus; "leaves" where neither this nor images is given.
    synthetic: str | None
    layer: str | Sequence[str] | None
    wrt: str | Sequence[str]
    #: Share of what the inserted blocks add, one or several.
    alpha: float | str | Sequence[float] | None
    unit: str | Sequence[Any]
    #: Channels of the layer to read, counted from 0: "3", "0,3,7" or numbers; all of them where it is left out.
    channels: int | str | Sequence[int] | None
    convention: Any
    method: str | Callable[..., Any]
    samples: int | None
    draws: int | Literal["all"] | None
    seed: int
    dtype: str
    amp_dtype: str | None
    device: str
    batch_size: int | None
    until_se: float | None
    shard: str | None
    keep_going: bool
    workers: int
    #: What was measured before, to be added to: a report, or the folder of one.
    resume: Any
    #: Folder in which each finished row is stored as it ends, so that a run that was killed can resume them. What it
    #: holds of another run is replaced.
    keep_in: str | Path | None
    #: With what was measured before: whether models that failed by themselves are measured again too, and not only
    #: those that failed for lack of space, memory or time.
    retry_failed: bool
    #: Called after every batch; true ends the run with what it has.
    stop: Callable[[], bool] | None
    #: Called with a line about what each measurement will take, before it begins.
    tell: Callable[[str], None] | None
    plain: bool
    #: Compare the first image with the plain model in float64.
    verify: bool
    measures: str | Sequence[str]
    #: Compare the gradient with forward passes with noise, which share no backward code with it.
    trust: bool
    #: A finding that makes a result unusable and is accepted: "gradient_disagrees".
    accept: str | None
    weights: str | Sequence[str]
    #: Called with (description, images done, images in all).
    progress: Callable[[str, int, int], None] | None


#: Options that are called while measuring, and those of how a run goes on: no settings of a measurement.
CALLBACKS, GOING_ON = ("progress", "stop", "tell"), ("resume", "retry_failed", "keep_in")


def channels(given: object) -> tuple[int, ...] | None:
    """Channels by their numbers: one, several, or words with commas between them; None where none are named.

    Raises:
        ErfscopeError: no numbers of 0 or more, or none at all.
    """
    if given is None:
        return None
    listed: Any = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else (given,)
    try:
        found = {int(each) if isinstance(each, str) else operator.index(each) for each in listed}
    except (TypeError, ValueError):
        found = set()
    if not found or min(found) < 0 or any(isinstance(each, bool) for each in listed):
        raise ErfscopeError(
            f"cannot read the channels {given!r}; write numbers from 0 on, such as 3 or 0,3,7, or leave it out for all"
        )
    return tuple(sorted(found))


def _free(default: Any) -> Any:
    """An option that changes nothing about what is measured, so that a run may go on with another value."""
    return field(default=default, metadata={"is_free": True})


def _recorded(default: Any) -> Any:
    """An option that results which stand in one table, a run that goes on, and a check and its baseline share.

    :attr:`erfscope.Result.options` holds it where it is not the default; nothing else has to be told of it.
    """
    return field(default=default, metadata={"is_recorded": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of one measurement, the same in Python and on the command line."""

    layer: str | None = None
    wrt: str = IMAGE
    unit: str | Sequence[Any] = "centre"
    #: Channels of the layer that the readout reads, ascending; None for all.
    channels: tuple[int, ...] | None = _recorded(None)
    #: Name, Convention or (readout, contribution) pair.
    convention: Any = "jacobian"
    #: Name, or a callable readout -> Captum attribution.
    method: str | Callable[..., Any] = "gradient"
    samples: int | None = None
    draws: int | Literal["all"] | None = None
    seed: int = 0
    dtype: str = "float32"
    amp_dtype: str | None = None
    device: str = _free("auto")
    batch_size: int | None = _free(None)
    #: Relative standard error of r50 at which to stop, e.g. 0.02.
    until_se: float | None = None
    #: "2/4" for the second of four equal parts of the images; None for all of them.
    shard: str | None = None
    keep_going: bool = False
    #: Processes that read images ahead; 0 reads each when it is needed.
    workers: int = _free(0)
    #: Run the model itself, whole, in the place of the operations that the unit needs.
    plain: bool = _free(False)
    #: Compare the first image with the plain model in float64: :class:`erfscope.results.result.Verification`.
    verify: bool = _free(False)
    #: "all" or names.
    measures: str | Sequence[str] = "all"
    #: Compare the gradient with forward passes with noise: :class:`erfscope.maps.trust.Trust`.
    trust: bool = _free(False)
    #: The code of a finding that makes a result unusable and is accepted.
    accept: str | None = _free(None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", channels(self.channels))
        if self.accept is not None and self.accept not in ACCEPTABLE:
            raise unknown("finding to accept", self.accept, ACCEPTABLE)
        _refuse_beside_gradient(self)
        if self.dtype not in DTYPES[:2]:
            raise unknown("dtype", self.dtype, DTYPES[:2])
        if self.amp_dtype is not None and self.amp_dtype not in DTYPES[2:]:
            raise unknown("amp dtype", self.amp_dtype, DTYPES[2:])
        if not 0 <= self.workers <= WORKERS_LIMIT:
            raise ErfscopeError(f"workers must be 0 to {WORKERS_LIMIT}, not {self.workers}")
        for name in ("samples", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ErfscopeError(f"{name.replace('_', '-')} must be at least 1, not {value}")
        if self.samples is not None and self.samples > SAMPLES_LIMIT:
            raise ErfscopeError(f"samples must be at most {SAMPLES_LIMIT}, not {self.samples}")
        if isinstance(self.draws, int) and self.draws > DRAWS_LIMIT:
            raise ErfscopeError(f"draws must be at most {DRAWS_LIMIT}, not {self.draws}; 'all' is exact")
        if self.draws is not None and self.draws != "all" and self.draws < 1:
            raise ErfscopeError(f"draws must be at least 1 or 'all', not {self.draws}")
        if not 0 <= self.seed < SEED_LIMIT:
            raise ErfscopeError(f"seed must be 0 or more and below 2**63, not {self.seed}")
        if self.until_se is not None and not 0 < self.until_se < 1:
            raise ErfscopeError(f"until-se must lie between 0 and 100 %, not {self.until_se:.3g}")
        if self.shard is not None and self.until_se is not None:
            raise ErfscopeError(
                "a shard cannot tell when all shards together have seen enough: give --samples instead of --until-se"
            )
        if self.shard is not None:
            parse(self.shard)
        if self.draws == "all" and self.method != "gradient":
            raise ErfscopeError("draws 'all' is exact for the method gradient only; give a number of draws")
        if is_every_unit(self.unit) and self.method != "gradient":
            raise ErfscopeError(
                f"unit all is for the method gradient, not {self.method}; leave --method out, or name units"
            )
        if is_every_unit(self.unit) and self.shard is not None:
            raise ErfscopeError(
                f"unit all cannot be put together from shards such as {self.shard}; leave --shard out, or name units"
            )
        convention_of(self.convention)
        self.measure_names()

    def recorded(self) -> dict[str, Any]:
        """What results have to record of the settings beside their own fields: those that are not the default, by
        name."""
        asked = {each.name: getattr(self, each.name) for each in fields(self) if "is_recorded" in each.metadata}
        return {name: value for name, value in asked.items() if value != self.__dataclass_fields__[name].default}

    def measure_names(self) -> list[str]:
        """The measures to compute, in the table's order.

        Raises:
            ErfscopeError: an unknown name.
        """
        from erfscope.measures import MEASURES

        if self.measures == "all":
            return list(MEASURES)
        names = (
            [n.strip() for n in self.measures.split(",") if n.strip()]
            if isinstance(self.measures, str)
            else list(self.measures)
        )
        if not names:
            raise ErfscopeError("measures is empty; write all, or names such as r50,r90")
        for name in names:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES, limit=40)
        return names


def _refuse_beside_gradient(settings: Settings) -> None:
    """Refuse questions about the gradient beside what takes none, or takes it in another dtype."""
    asked = "trust" if settings.trust else "verify" if settings.verify else ""
    if asked and settings.method != "gradient":
        text = f"{asked} is a question about the gradient, and the method is {settings.method}"
        raise ErfscopeError(f"{text}: leave --{asked} or --method out")
    if settings.verify and settings.amp_dtype is not None:
        raise ErfscopeError("verify compares with float64, which amp-dtype is not: leave --verify or --amp-dtype out")


#: Settings that change nothing about what is measured.
FREE = tuple(each.name for each in fields(Settings) if "is_free" in each.metadata)


def by_removal(settings: Settings) -> bool:
    """Whether a measurement takes nodes of a feature map away one by one; on the image, occlusion is Captum's, by
    patches."""
    return settings.method == "occlusion" and settings.wrt != IMAGE
