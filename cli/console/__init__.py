"""What the terminal is: streams, colours, widths, messages.

May import: ``printable``.
"""
