"""Whether a gradient is the model's true derivative, by forward passes that share no backward code with it.

May import: what ``engine`` may.
"""
