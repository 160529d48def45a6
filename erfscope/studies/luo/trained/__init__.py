"""Nets that are trained, and what they are trained on.

May import: what ``studies`` may, its ``study`` and ``training``, and ``studies.luo``.
"""
