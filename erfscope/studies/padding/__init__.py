"""Studies of what padding tells a net of positions.

May import: what ``studies`` may, and its ``study`` and ``training``.
"""
