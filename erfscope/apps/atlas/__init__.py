"""What is known of every model of timm without running it, kept as data.

May import: what ``apps`` may.
"""
