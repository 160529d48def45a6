"""The terminal: streams, colours, widths, messages.

May import: ``printable``.
"""
