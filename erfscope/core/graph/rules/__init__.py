"""One table, operation -> what it reads of each of its inputs, and how a part of its output is computed from the parts
that it reads.

May import: ``graph.graph``.
"""

from erfscope.core.graph.rules import elementwise as elementwise
from erfscope.core.graph.rules import mixing as mixing
from erfscope.core.graph.rules import moves as moves
from erfscope.core.graph.rules import picking as picking
from erfscope.core.graph.rules import products as products
from erfscope.core.graph.rules import resampling as resampling
from erfscope.core.graph.rules import windows as windows
