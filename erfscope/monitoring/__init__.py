"""Effective receptive fields while a model is trained."""

from erfscope.monitoring.monitor import ErfMonitor

__all__ = ["ErfMonitor"]
