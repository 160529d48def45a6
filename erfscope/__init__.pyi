"""The public names of erfscope and where they are.

Type checkers read them here, and ``__init__.py`` loads each on first use.
"""

from erfscope import adapters as adapters
from erfscope import core as core
from erfscope import show as show
from erfscope.adapters import wrap as wrap
from erfscope.adapters.edits import edit as edit
from erfscope.adapters.edits import edited as edited
from erfscope.apps.advise.advice import Advice as Advice
from erfscope.apps.advise.advice import advise as advise
from erfscope.apps.atlas.atlas import Atlas as Atlas
from erfscope.apps.atlas.atlas import models as models
from erfscope.apps.explore.exploration import explore as explore
from erfscope.apps.gate import gate as gate
from erfscope.apps.gate.checks import check as check
from erfscope.apps.gate.checks import compare_to_baseline as compare_to_baseline
from erfscope.apps.lab import studies as studies
from erfscope.apps.lab import theory as theory
from erfscope.apps.lab.influence_matrix import Influence as Influence
from erfscope.apps.lab.influence_matrix import influence as influence
from erfscope.apps.lam.lam import lam as lam
from erfscope.apps.lam.maps import Lam as Lam
from erfscope.apps.monitor.monitor import ErfMonitor as ErfMonitor
from erfscope.apps.tile.budget import HaloBudget as HaloBudget
from erfscope.apps.tile.budget import seams as seams
from erfscope.apps.tile.halo import halo_budget as halo_budget
from erfscope.apps.tile.run import run_tiled as run_tiled
from erfscope.apps.tile.tile_plan import TilePlan as TilePlan
from erfscope.apps.tile.tiles import tile as tile
from erfscope.core.answer.convention import CONVENTIONS as CONVENTIONS
from erfscope.core.answer.convention import Convention as Convention
from erfscope.core.answer.maps.erf_map import ErfMap as ErfMap
from erfscope.core.answer.measures import MEASURES as MEASURES
from erfscope.core.answer.measures import Measure as Measure
from erfscope.core.answer.report import Report as Report
from erfscope.core.answer.result import Result as Result
from erfscope.core.answer.storage.files import read as read
from erfscope.core.request.settings import Options as Options
from erfscope.core.run.analysis import analyze as analyze
from erfscope.core.run.analysis import sweep as sweep
from erfscope.core.run.attribution.captum_methods import ErfAttribution as ErfAttribution
from erfscope.core.run.attribution.readout import UnitReadout as UnitReadout
from erfscope.core.run.comparison import compare as compare
from erfscope.core.run.isolated import compare_isolated as compare_isolated
from erfscope.core.run.parallel import distributed as distributed
from erfscope.core.run.shards import merge as merge
from erfscope.core.run.structure import layers as layers
from erfscope.core.run.structure import theoretical as theoretical
from erfscope.core.values.errors import ErfscopeError as ErfscopeError
from erfscope.core.values.errors import ErfWarning as ErfWarning
from erfscope.core.values.errors import FallbackWarning as FallbackWarning
from erfscope.core.values.errors import MeasurementError as MeasurementError
from erfscope.core.values.unit import Trf as Trf

__version__: str
