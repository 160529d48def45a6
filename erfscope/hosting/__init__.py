"""Other people's code in this process: modules are lent, copied and put back, and so is what they change of the process.

May import: ``model_errors`` and below.
"""
