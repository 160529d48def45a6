"""A baseline, a comparison with it, a verdict.

May import: what ``apps`` may.
"""
