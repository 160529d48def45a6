"""Luo et al. 2016, *Understanding the Effective Receptive Field in Deep Convolutional Neural Networks*: one study per
claim.

May import: what ``studies`` may, and its ``study``.

:mod:`~erfscope.studies.luo.nets` has the stacks of convolutions that most of them measure, many drawn at once;
:mod:`~erfscope.studies.luo.rows` how they measure, and the rows of their tables.
"""
