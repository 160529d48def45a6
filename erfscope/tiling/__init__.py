"""Tiles of images that are too large for one forward pass: how far they must overlap, and inference on them.

May import: ``show``, ``engine``, ``storage`` and below, not ``view``; a model is opened by who calls.
"""

from erfscope.tiling.budget import HaloBudget, Seam, seams
from erfscope.tiling.find import find_plan
from erfscope.tiling.plan import TileCost, Window, tile_costs, with_tile
from erfscope.tiling.recipes import recipe
from erfscope.tiling.run import run_tiled
from erfscope.tiling.tile_plan import TilePlan

__all__ = [
    "HaloBudget",
    "Seam",
    "TileCost",
    "TilePlan",
    "Window",
    "find_plan",
    "recipe",
    "run_tiled",
    "seams",
    "tile_costs",
    "with_tile",
]
