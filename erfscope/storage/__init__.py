"""Results as JSON and arrays on disk, and back, checked.

May import: ``results`` and below.
"""
