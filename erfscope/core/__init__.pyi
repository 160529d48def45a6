"""The names of the face and where they are.

Type checkers read them here, and ``__init__.py`` loads each on first use.
"""

from erfscope.adapters import ModuleAdapter as ModuleAdapter
from erfscope.adapters.recorded import sharing_recordings as sharing_recordings
from erfscope.adapters.requested import Model as Model
from erfscope.core.answer.json_values import from_json as from_json
from erfscope.core.answer.json_values import to_json as to_json
from erfscope.core.answer.layers import LayerRow as LayerRow
from erfscope.core.answer.maps.erf_map import ErfMap as ErfMap
from erfscope.core.answer.maps.erf_map import FloatArray as FloatArray
from erfscope.core.answer.maps.hops import HopProfile as HopProfile
from erfscope.core.answer.measures import MEASURES as MEASURES
from erfscope.core.answer.measures import MeasureValue as MeasureValue
from erfscope.core.answer.measures import Prepared as Prepared
from erfscope.core.answer.measures.radial_curve import mass_beyond as mass_beyond
from erfscope.core.answer.report import Report as Report
from erfscope.core.answer.result import Result as Result
from erfscope.core.answer.storage.raster_output import RasterOutput as RasterOutput
from erfscope.core.graph.site import Site as Site
from erfscope.core.images.feed import Images as Images
from erfscope.core.request.option import Building as Building
from erfscope.core.request.request import Request as Request
from erfscope.core.request.settings import Options as Options
from erfscope.core.request.settings import lists_options as lists_options
from erfscope.core.run.attribution.forward import sound_gradients as sound_gradients
from erfscope.core.run.engine.layer_table import layer_table as layer_table
from erfscope.core.run.engine.model import OpenModel as OpenModel
from erfscope.core.run.engine.operations import Operation as Operation
from erfscope.core.run.entries import named_models as named_models
from erfscope.core.run.executor import measure as measure
from erfscope.core.run.executor import report_of as report_of
from erfscope.core.run.halos import find_tilings as find_tilings
from erfscope.core.run.halos import halo_of as halo_of
from erfscope.core.run.models import open_images as open_images
from erfscope.core.run.models import open_model as open_model
from erfscope.core.run.projective import projective_fields as projective_fields
from erfscope.core.run.rows import Row as Row
from erfscope.core.run.rows import rows as rows
from erfscope.core.run.tiling.crops import CropModel as CropModel
from erfscope.core.run.tiling.plan import Tiling as Tiling
from erfscope.core.run.unit_maps import UnitMaps as UnitMaps
from erfscope.core.run.unit_maps import unit_maps as unit_maps
from erfscope.core.system.environment import environment as environment
from erfscope.core.system.model_errors import first_line as first_line
from erfscope.core.values.axes import Axes as Axes
from erfscope.core.values.errors import ErfscopeError as ErfscopeError
from erfscope.core.values.errors import MeasurementError as MeasurementError
from erfscope.core.values.errors import unknown as unknown
from erfscope.core.values.finding import Finding as Finding
from erfscope.core.values.names import IMAGE as IMAGE
from erfscope.core.values.names import OUTPUT as OUTPUT
from erfscope.core.values.names import is_input as is_input
from erfscope.core.values.unit import Trf as Trf
from erfscope.core.values.unit import Unit as Unit
