"""The literature, reproduced: its formulas, its studies, influence matrices.

May import: what ``apps`` may.
"""
