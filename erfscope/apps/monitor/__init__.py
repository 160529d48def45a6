"""Measurements while a model is trained.

May import: what ``apps`` may.
"""
