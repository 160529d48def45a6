"""``Result``, ``Report``, what makes two results comparable, what must be said of one.

May import: ``attribution`` (names of conventions) and below.
"""
