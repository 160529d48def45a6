"""Tiles of images that are too large for one forward pass: how far they must overlap, and inference on them.

May import: ``engine``, ``storage`` and below; a model is opened by who calls.
"""

from erfscope.tiling.find import find_plan
from erfscope.tiling.plan import TilePlan, Window
from erfscope.tiling.recipes import recipe
from erfscope.tiling.run import run_tiled

__all__ = ["TilePlan", "Window", "find_plan", "recipe", "run_tiled"]
