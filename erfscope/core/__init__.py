"""What the tool is: models, places in them, rows to measure, and what is measured of them.

May import: ``adapters``; not ``show`` and ``apps``.
"""
