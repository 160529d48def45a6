"""Where models come from: factories, files, programs, repositories.

May import: what ``adapters`` may, its adapters and ``adapters.weights``.
"""
