"""``Result``, ``Report``, what makes two results comparable, and the findings of a result.

May import: ``attribution`` (names of conventions) and below.
"""
