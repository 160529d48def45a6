"""Studies of nets that see clips.

May import: what ``studies`` may, and its ``study`` and ``training``.
"""
