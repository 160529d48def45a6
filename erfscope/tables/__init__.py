"""Results in words: numbers, conditions, tables, the methods section.

May import: ``results`` and below.
"""
