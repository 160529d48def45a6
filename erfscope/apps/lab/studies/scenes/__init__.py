"""Studies of relations between objects of a scene.

May import: what ``studies`` may, and its ``study`` and ``training``.
"""
