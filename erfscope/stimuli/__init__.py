"""Images and tensors that are shown to a model.

May import: ``geometry`` and below.
"""

from erfscope.stimuli.decode import open_arrays
from erfscope.stimuli.files import open_images
from erfscope.stimuli.picture import Stimuli
from erfscope.stimuli.synthetic import KINDS, synthetic

__all__ = ["KINDS", "Stimuli", "open_arrays", "open_images", "synthetic"]
