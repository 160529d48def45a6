"""What the terminal shows.

May import: everything below ``cli``, and its ``console``.
"""
