"""One table, operation -> what it reads of each of its inputs, and how a part of its output is computed from the parts
that it reads.

May import: ``graph.graph``.
"""

from erfscope.graph.rules import elementwise as elementwise
from erfscope.graph.rules import mixing as mixing
from erfscope.graph.rules import moves as moves
from erfscope.graph.rules import picking as picking
from erfscope.graph.rules import products as products
from erfscope.graph.rules import resampling as resampling
from erfscope.graph.rules import windows as windows
