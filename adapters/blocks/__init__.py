"""Graph and attention blocks as ordinary modules on maps (B, C, H, W), for insertion into models and for the theory.

May import: ``adapters.sources``, ``system``, ``values``.

A graph that is no grid is a map of 1 x n. Video (B, C, T, H, W) is taken frame by frame. :func:`on_nodes` makes a
function of node features of any of them. docs/theory.md says which closed form is whose."""

from erfscope.adapters.blocks.attention import NonLocal, SelfAttention
from erfscope.adapters.blocks.graph_nets import GAT, GCN, GIN, ChebNet, ChebyGIN, GATv2
from erfscope.adapters.blocks.graphs import FullGraph, GivenGraph, Graph, GridGraph, NearestGraph, as_graph
from erfscope.adapters.blocks.maps import PerFrame, on_nodes
from erfscope.adapters.blocks.pooling import ThresholdPooling, TopKPooling
from erfscope.adapters.blocks.registry import BLOCKS, BlockEntry, Pipeline, make
from erfscope.adapters.blocks.wide import GlobalContext, LargeKernel, global_context

__all__ = [
    "BLOCKS",
    "GAT",
    "GCN",
    "GIN",
    "BlockEntry",
    "ChebNet",
    "ChebyGIN",
    "FullGraph",
    "GATv2",
    "GivenGraph",
    "GlobalContext",
    "Graph",
    "GridGraph",
    "LargeKernel",
    "NearestGraph",
    "NonLocal",
    "PerFrame",
    "Pipeline",
    "SelfAttention",
    "ThresholdPooling",
    "TopKPooling",
    "as_graph",
    "global_context",
    "make",
    "on_nodes",
]
