"""What people see of results: a view of a report, built once, all words, and a writer for each output; the one door to
jinja2.

May import: ``results``, ``measures``, ``stimuli`` and below.
"""
