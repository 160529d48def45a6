"""The explorer: the maps of a grid of units of every stage on one image, and the page that shows them.

May import: ``engine``, ``storage``, ``view`` and below.
"""
