"""Commands and what the terminal shows; computes nothing.

May import: everything below.
"""
