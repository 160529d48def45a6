"""Applications: each is written on :mod:`erfscope.core` and :mod:`erfscope.show`, as a package of somebody else.

May import: ``core``, ``show`` and ``adapters``, not one another.
"""
