"""What was asked for, checked once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from erfscope.adapter import IMAGE
from erfscope.attribution.convention import convention_of
from erfscope.errors import ErfscopeError, unknown
from erfscope.parallel.shard import parse

DTYPES = ("float32", "float64", "bfloat16", "float16")
#: How a crop must be known to be exact; see :attr:`Settings.cone`.
CONES = ("proved", "compare", "off")
#: Samples where none were asked for: synthetic stimuli and directories.
SAMPLES = 20
#: What PyTorch's generators take.
SEED_LIMIT = 2**63
#: Images that --until-se may add up to, where there is no end to them.
UNTIL_SE_LIMIT = 1000
#: More pictures, and draws per picture, than anybody needs; each has a name, or a map of its own.
SAMPLES_LIMIT, DRAWS_LIMIT = 10_000_000, 100_000
#: More processes than any machine reads pictures with.
WORKERS_LIMIT = 1024


def cone_word(given: object) -> str:
    """What is asked of the cone in one word of CONES; stored settings may say true or false.

    Raises:
        ErfscopeError: anything else.
    """
    if isinstance(given, bool):
        return CONES[0] if given else CONES[-1]
    if given not in CONES:
        raise unknown("cone", str(given), CONES)
    return str(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of one measurement, the same in Python and on the command line."""

    layer: str | None = None
    wrt: str = IMAGE
    unit: str | Sequence[Any] = "centre"
    #: Name, Convention or (readout, contribution) pair.
    convention: Any = "jacobian"
    #: Name, or a callable readout -> Captum attribution.
    method: str | Callable[..., Any] = "gradient"
    samples: int | None = None
    draws: int | Literal["all"] | None = None
    seed: int = 0
    dtype: str = "float32"
    amp_dtype: str | None = None
    device: str = "auto"
    batch_size: int | None = None
    #: Relative standard error of r50 at which to stop, e.g. 0.02.
    until_se: float | None = None
    #: "2/4" for the second of four equal parts of the pictures; None for all of them.
    shard: str | None = None
    keep_going: bool = False
    #: Processes that read pictures ahead; 0 reads each when it is needed.
    workers: int = 0
    #: Compute only what a unit can see: "proved" where the recorded operations show that to be exact, "compare" also where no more than a
    #: comparison with the whole pass speaks for it, "off" never. True and False stand for the first and the last.
    cone: bool | str = "proved"
    #: Compare the cone with the whole pass on the first image.
    verify_cone: bool = False
    #: "all" or names.
    measures: str | Sequence[str] = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cone", cone_word(self.cone))
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
            raise ErfscopeError("a shard cannot tell when all shards together have seen enough: give --samples instead of --until-se")
        if self.shard is not None:
            parse(self.shard)
        if self.draws == "all" and self.method != "gradient":
            raise ErfscopeError("draws 'all' is exact for the method gradient only; give a number of draws")
        convention_of(self.convention)
        self.measure_names()

    def measure_names(self) -> list[str]:
        """The measures to compute, in the table's order.

        Raises:
            ErfscopeError: an unknown name.
        """
        from erfscope.measures import MEASURES

        if self.measures == "all":
            return list(MEASURES)
        names = [n.strip() for n in self.measures.split(",") if n.strip()] if isinstance(self.measures, str) else list(self.measures)
        if not names:
            raise ErfscopeError("measures is empty; write all, or names such as r50,r90")
        for name in names:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES, limit=40)
        return names


def by_removal(settings: Settings) -> bool:
    """Whether a measurement takes nodes of a feature map away one by one; on the image, occlusion is Captum's, by patches."""
    return settings.method == "occlusion" and settings.wrt != IMAGE
