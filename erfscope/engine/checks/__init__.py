"""What a run finds out about itself on the images that it measures: repeatable passes, images that stand alone, exact
crops, autocast.

May import: what ``engine`` may, and its ``state``, ``batch``, ``batch_size`` and ``cone_difference``.
"""
