"""Results as JSON and arrays on disk, and back, checked.

The flow: ``reports.read`` reads the files (``files``), converts them by their types (``json_format``, ``documents``,
``sums``). ``formats`` is the table of files, ``writing`` writes them
whole or not at all.

May import: ``results`` and below.
"""
