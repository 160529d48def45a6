"""What chance does to a measured change, and the decision between a change and none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Word = Literal["pass", "fail", "cannot tell"]
#: How often, at most, a check fails a model that has not changed; and how often it passes a measure that moved by twice
#: its tolerance.
CHANCE = 0.01
#: A standard error from ten groups is itself uncertain by a quarter, so that its square may be twice as large next
#: time.
MARGIN = 2.0
#: More samples than this are not proposed.
MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceNoise:
    """How far chance moves a measure, in its unit."""

    #: A model that has not changed moves by more in :data:`CHANCE` of all checks, over all of their measures and looks.
    of_any: float
    #: One that has changed moves by so much less than it should in :data:`CHANCE` of all checks, over all looks.
    of_one: float

    @property
    def most(self) -> float:
        """The larger of the two."""
        return max(self.of_any, self.of_one)


def noise_of(se: float, groups: int, *, tails: Literal[1, 2], measures: int = 1, looks: int = 1) -> DifferenceNoise:
    """How far chance moves a measure: its standard error times Student's quantile.

    A check fails if any of its measures does, so that they share the chance of that (Bonferroni), and it passes only if
    all do, so that each has the chance of its own. Looks at more and more images share both.

    Args:
        se: Standard error of the difference.
        groups: Groups of images that it comes from: one more than its degrees of freedom.
        tails: In how many directions a change fails.
        measures: The measures of the check.
        looks: The times that it may be decided.
    """
    from scipy.special import stdtrit  # late: it takes long to import

    def bound(chance: float) -> float:
        return se * float(stdtrit(groups - 1, 1 - chance)) if se > 0 else 0.0

    return DifferenceNoise(of_any=bound(CHANCE / (tails * measures * looks)), of_one=bound(CHANCE / looks))


def decide(move: float, limit: float, noise: DifferenceNoise) -> Word:
    """The verdict on a move D in the guarded direction, with the tolerance T.

    It fails where D > T and no chance explains D: D > ``noise.of_any``. It passes where D <= T and twice the tolerance
    is excluded: D + ``noise.of_one`` <= 2 T. Noise up to T always leaves one of the two.
    """
    if move > limit:
        return "fail" if move > noise.of_any else "cannot tell"
    return "pass" if move + noise.of_one <= 2 * limit else "cannot tell"


def needed(n: int, noise: DifferenceNoise, limit: float) -> int | None:
    """The number of samples that brings the noise, which falls with its square root, below the tolerance: then there is
    always a verdict. None where no practical number does."""
    if limit <= 0:
        return None
    count = MARGIN * n * (noise.most / limit) ** 2
    # Tens fill the ten groups evenly.
    return 10 * math.ceil(count / 10) if count <= MOST else None
