"""Processes that share one run: started by ``torchrun``, each sees a part of the pictures, and all end up with the whole."""

from erfscope.ranks.joining import distributed, is_member
from erfscope.ranks.team import ALONE, GONE, RankGone, Team, by_itself, current

__all__ = ["ALONE", "GONE", "RankGone", "Team", "by_itself", "current", "distributed", "is_member"]
