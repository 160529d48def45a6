"""What a forward pass does, noted operation by operation while it runs.

May import: ``restore`` and below, ``trf.rules`` and what that may.
"""
