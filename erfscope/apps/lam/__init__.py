"""Local attribution maps (LAM) of models that restore images: where the input gives a window its edges.

May import: what ``apps`` may.
"""
