"""``Result``, ``Report``, what makes two results comparable, and the findings of a result.

May import: ``adapter``, ``graph``, ``images`` and below.
"""
