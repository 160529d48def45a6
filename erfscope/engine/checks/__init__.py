"""What a run finds out about itself on the images that it measures: what autocast changes.

May import: what ``engine`` may, and its ``state``, ``batch`` and ``batch_size``.
"""
