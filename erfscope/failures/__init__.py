"""What an exception means: whose fault it is, in plain words, and what to do about it.

May import: ``adapter`` and below.
"""
