"""Measurements while a model is trained.

May import: what ``apps`` may.
"""

from erfscope.apps.monitor.monitor import ErfMonitor

__all__ = ["ErfMonitor"]
