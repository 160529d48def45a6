"""Studies of attention and pooling on graphs.

May import: what ``studies`` may, and its ``study`` and ``training``.
"""
