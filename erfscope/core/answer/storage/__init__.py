"""Results as JSON and arrays on disk, and back, checked.

The flow: ``files.read`` reads a folder or a file and converts it (``json_format``) by its types (``documents``).
``writing`` has the table of file formats, and writes files whole or not at all.

May import: ``answer`` around it, and below.
"""
