"""A command while it runs: signals, limits, output.

May import: everything below ``cli``, and its ``console``, ``views`` and ``options``.
"""
