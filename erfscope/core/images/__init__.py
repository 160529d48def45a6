"""Images and tensors that are shown to a model.

May import: ``system``, ``values``.
"""

from erfscope.core.images.decode import open_arrays
from erfscope.core.images.files import open_pictures
from erfscope.core.images.picture import Stimuli
from erfscope.core.images.synthetic import KINDS, synthetic

__all__ = ["KINDS", "Stimuli", "open_arrays", "open_pictures", "synthetic"]
