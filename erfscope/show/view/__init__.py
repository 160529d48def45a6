"""The view of a report (its columns, cells, notes and words, built once) and a writer for each output; the one door to
jinja2.

May import: ``core`` and below.
"""
