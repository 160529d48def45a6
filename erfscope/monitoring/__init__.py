"""Measurements while a model is trained.

May import: everything below.
"""

from erfscope.monitoring.monitor import ErfMonitor

__all__ = ["ErfMonitor"]
