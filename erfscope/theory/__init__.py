"""Closed forms in NumPy.

May import: ``maps`` and below.

Features are rows, X is (n, c); ``A[p, i]`` is the weight with which p receives from i, and A is not assumed symmetric;
products of weights run W_1 W_2 ... W_L. Functions that give a Jacobian give the whole of it, ``J[p, r, i, s]`` = dY_pr
/ dX_is, (m, c_out, n, c_in); :func:`influence_of` turns it into an influence matrix (m, n) of any convention, and
:func:`compare` holds a measured one against it.

The page docs/theory.md has all results under the labels that are cited here (D7, ...) with their sources, and the
errata (E0-01, ...)."""

from erfscope.theory.adjacency import (
    adjacency_power,
    degrees,
    grid_adjacency,
    laplacian,
    mean_adjacency,
    renormalised_adjacency,
    symmetric_adjacency,
)
from erfscope.theory.agreement import Agreement, compare
from erfscope.theory.closed_forms.attention import (
    dot_attention,
    multi_head_attention,
    nonlocal_block,
    softmax_attention,
)
from erfscope.theory.closed_forms.convolution import (
    StackShape,
    binomial_asymptote,
    gaussian_luo_size,
    gaussian_mass_radius,
    random_weight_energy,
    residual_stack,
    strided_dilated_stack,
    strided_dilated_variance,
    uniform_stack,
    weighted_kernel_variance,
)
from erfscope.theory.closed_forms.gatv2 import GatV2Gradients, dead_targets, gatv2, gatv2_parameter_gradients
from erfscope.theory.closed_forms.pooling import (
    attention_reweighting,
    leave_one_out,
    threshold_nodes,
    threshold_pooling,
    top_k_nodes,
    top_k_pooling,
)
from erfscope.theory.expectations import (
    Moments,
    dot_attention_mean,
    dot_attention_random_weights,
    linear_gcn_constant_weights,
    linear_gcn_random_weights,
    relu_gcn_mean,
    relu_gcn_random_weights,
)
from erfscope.theory.graphs import (
    fully_connected_gcn,
    linear_gcn,
    linear_gcn_influence,
    mean_gcn_with_self_term,
    relu_gates,
    relu_gcn,
)
from erfscope.theory.jacobian import INFLUENCES, boundary_bias, chain, influence_of, permuted, with_residual
from erfscope.theory.networks import chebnet, chebygin, chebyshev_polynomials, gin, mlp_slopes

__all__ = [
    "INFLUENCES",
    "Agreement",
    "GatV2Gradients",
    "Moments",
    "StackShape",
    "adjacency_power",
    "attention_reweighting",
    "binomial_asymptote",
    "boundary_bias",
    "chain",
    "chebnet",
    "chebygin",
    "chebyshev_polynomials",
    "compare",
    "dead_targets",
    "degrees",
    "dot_attention",
    "dot_attention_mean",
    "dot_attention_random_weights",
    "fully_connected_gcn",
    "gatv2",
    "gatv2_parameter_gradients",
    "gaussian_luo_size",
    "gaussian_mass_radius",
    "gin",
    "grid_adjacency",
    "influence_of",
    "laplacian",
    "leave_one_out",
    "linear_gcn",
    "linear_gcn_constant_weights",
    "linear_gcn_influence",
    "linear_gcn_random_weights",
    "mean_adjacency",
    "mean_gcn_with_self_term",
    "mlp_slopes",
    "multi_head_attention",
    "nonlocal_block",
    "permuted",
    "random_weight_energy",
    "relu_gates",
    "relu_gcn",
    "relu_gcn_mean",
    "relu_gcn_random_weights",
    "renormalised_adjacency",
    "residual_stack",
    "softmax_attention",
    "strided_dilated_stack",
    "strided_dilated_variance",
    "symmetric_adjacency",
    "threshold_nodes",
    "threshold_pooling",
    "top_k_nodes",
    "top_k_pooling",
    "uniform_stack",
    "weighted_kernel_variance",
    "with_residual",
]
