"""The keywords of the public functions, parsed and checked.

May import: ``answer`` (names of conventions and measures), ``system``, ``values``.
"""

from erfscope.core.request.settings import Options

__all__ = ["Options"]
