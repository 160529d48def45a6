"""The explorer: the maps of a grid of units of every stage on one image, the page that shows them, and the server that
computes any unit when it is pointed at.

May import: what ``apps`` may.
"""
