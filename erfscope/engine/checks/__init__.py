"""What a run finds out about itself on the images that it measures: repeatable passes, images that stand alone, exact crops, autocast.

May import what the engine may, and the engine's ``run``, ``batch`` and ``batch_size``.
"""
