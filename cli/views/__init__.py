"""The views in the terminal.

May import: everything below ``cli``, and its ``console``.
"""
