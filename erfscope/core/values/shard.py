"""Shards: runs that each measure a part of the images."""

from __future__ import annotations

import re
from dataclasses import dataclass

from erfscope.core.values.errors import ErfscopeError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shard:
    """Every ``of``-th image, starting with the ``number``-th: together the shards 1 to ``of`` hold every image once."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def indices(self, n: int) -> range:
        """Global indices of its images among ``n``, ascending.

        Raises:
            ErfscopeError: there are fewer images than shards, so that this one has none.
        """
        found = range(self.number - 1, n, self.of)
        if not found:
            raise ErfscopeError(
                f"shard {self} of {n} image{'s' * (n != 1)} is empty; use at most {n} shards, or more --samples"
            )
        return found


def parse(text: str) -> Shard:
    """A shard as written on the command line, ``"2/4"``.

    Raises:
        ErfscopeError: anything else, or a number outside 1 ... the number of shards.
    """
    found = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
    if found is None or not int(found[2]):
        raise ErfscopeError(f"cannot read the shard {text!r}; write i/n, from 1/4 to 4/4 for four of them")
    number, of = int(found[1]), int(found[2])
    if not 1 <= number <= of:
        raise ErfscopeError(f"there is no shard {number}/{of}: they are numbered from 1/{of} to {of}/{of}")
    return Shard(number=number, of=of)
