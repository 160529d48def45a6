"""What erfscope needs of the machine, of Python and of PyTorch: precision, random states, memory, errors of models.

May import: ``values``.
"""
