"""Tiles of images that are too large for one forward pass: how far they must overlap, and inference on them.

May import: what ``apps`` may.
"""

from erfscope.apps.tile.budget import HaloBudget, Seam, seams
from erfscope.apps.tile.costs import TileCost, tile_costs
from erfscope.apps.tile.recipes import recipe
from erfscope.apps.tile.run import run_tiled
from erfscope.apps.tile.tile_plan import TilePlan

__all__ = ["HaloBudget", "Seam", "TileCost", "TilePlan", "recipe", "run_tiled", "seams", "tile_costs"]
