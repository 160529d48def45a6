"""What is known of one tensor of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from erfscope.trf.graph import Node
from erfscope.trf.rules import Call
from erfscope.trf.tapes.fingerprint import Provenance, operation_provenance, tensor_identity
from erfscope.trf.tapes.outside import Memory


@dataclass(slots=True, eq=False)
class TensorState:
    """What is known of one tensor object: its value now, and whose view it is."""

    #: Kept, so that its id stays its own.
    tensor: Tensor
    shape: tuple[int, ...]
    #: None: does not depend on the image.
    node: Node | None = None
    base: TensorState | None = None
    #: The operation that made this view, and which of its outputs this is.
    view: Call | None = None
    output: int = 0
    #: The base's value that ``node`` was made from.
    base_node: Node | None = None
    #: Where the numbers of a tensor come from that does not depend on the image; None for one that was there before the
    #: pass.
    own_provenance: Provenance | None = None
    #: Whether it was filled with one number, as padding is.
    is_filler: bool = False
    #: Whether code that is not recorded may write its numbers: memory that nothing was written to, or that was handed
    #: out.
    is_writable_outside: bool = False
    #: Where its numbers lie, as far as that was looked at.
    memory: Memory | None = None

    @property
    def root(self) -> TensorState:
        """What this is a view of, or itself."""
        state = self
        while state.base is not None:
            state = state.base
        return state

    def provenance(self) -> Provenance:
        """Where the numbers come from; the same in two passes only if the numbers are."""
        if self.base is not None and self.view is not None:
            arguments = {**self.view.args, "base": self.base.provenance()}
            return operation_provenance(self.view.name, arguments, self.view.shapes[self.output], output=self.output)
        if self.own_provenance is None:
            self.own_provenance = tensor_identity(self.tensor)
        return self.own_provenance
