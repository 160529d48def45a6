"""Luo et al. 2016, *Understanding the Effective Receptive Field in Deep Convolutional Neural Networks*: one study per
claim.

May import: what ``studies`` may, and its ``study``.

:mod:`~erfscope.apps.lab.studies.luo.stacks` has the stacks of convolutions that most of them measure, many drawn at
once, how they are measured, and the rows of their tables.
"""
