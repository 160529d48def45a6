"""Studies of what a map is worth: whether its gradient is the model's derivative, and how much of it the weights make.

May import: what ``studies`` may, and its ``study``.
"""
