"""Runs in several parts: which pictures a shard measures, what it keeps for the others, and putting shards together."""

from erfscope.shards.part import Part
from erfscope.shards.shard import Shard

__all__ = ["Part", "Shard"]
