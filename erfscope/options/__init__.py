"""The keywords of the public functions, parsed and checked.

May import: ``attribution``, ``measures``, ``parallel`` (names and limits) and below.
"""

from erfscope.options.settings import Options

__all__ = ["Options"]
