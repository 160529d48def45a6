"""What is measured, in which order, and by whom: the rows of a report and the one executor that measures them.

May import: ``adapters``, ``request``, ``answer`` and below.
"""
