"""Other people's code in this process: modules are lent, copied and put back, and so is what they change of the process.

May import: ``failures`` and below.
"""
