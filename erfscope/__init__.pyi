"""The public names of erfscope and where they are.

Type checkers read them here, and ``__init__.py`` loads each on first use.
"""

from erfscope import adapters as adapters
from erfscope import api as api
from erfscope import gate as gate
from erfscope import show as show
from erfscope import studies as studies
from erfscope import theory as theory
from erfscope.adapters import wrap as wrap
from erfscope.adapters.edits import edit as edit
from erfscope.adapters.edits import edited as edited
from erfscope.advice import Advice as Advice
from erfscope.advice import advise as advise
from erfscope.api import analyze as analyze
from erfscope.api import check as check
from erfscope.api import compare as compare
from erfscope.api import compare_isolated as compare_isolated
from erfscope.api import compare_to_baseline as compare_to_baseline
from erfscope.api import halo_budget as halo_budget
from erfscope.api import layers as layers
from erfscope.api import merge as merge
from erfscope.api import sweep as sweep
from erfscope.api import theoretical as theoretical
from erfscope.api import tile as tile
from erfscope.api.exploration import explore as explore
from erfscope.attribution.captum_methods import ErfAttribution as ErfAttribution
from erfscope.attribution.convention import CONVENTIONS as CONVENTIONS
from erfscope.attribution.convention import Convention as Convention
from erfscope.attribution.readout import UnitReadout as UnitReadout
from erfscope.errors import ErfscopeError as ErfscopeError
from erfscope.errors import ErfWarning as ErfWarning
from erfscope.errors import FallbackWarning as FallbackWarning
from erfscope.errors import MeasurementError as MeasurementError
from erfscope.geometry.unit import Trf as Trf
from erfscope.influence_matrix import Influence as Influence
from erfscope.influence_matrix import influence as influence
from erfscope.maps.erf_map import ErfMap as ErfMap
from erfscope.measures import MEASURES as MEASURES
from erfscope.measures import Measure as Measure
from erfscope.monitoring import ErfMonitor as ErfMonitor
from erfscope.options.settings import Options as Options
from erfscope.parallel import distributed as distributed
from erfscope.results.report import Report as Report
from erfscope.results.result import Result as Result
from erfscope.storage.files import read as read
from erfscope.tiling import HaloBudget as HaloBudget
from erfscope.tiling import TilePlan as TilePlan
from erfscope.tiling import run_tiled as run_tiled
from erfscope.tiling import seams as seams

__version__: str
