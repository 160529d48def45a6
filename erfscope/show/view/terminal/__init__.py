"""Results in the terminal; beside the commands the one door to rich.

May import: ``view`` beside it, and below.
"""
