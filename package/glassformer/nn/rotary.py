"""Rotary positions as a module.

Book: embeddings
"""

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.functional.positions import rotary_angles

__all__ = ["Rotary"]


class Rotary(nn.Module):
    """Cosines and sines for the positions of one forward pass, shared by all layers.

    It has no parameters and no buffers: nothing to save, nothing that half precision could spoil.

    Args:
        d_head: width of a head, even.
        base: base of the frequencies.

    Source: Su et al. 2021. Book: embeddings
    """

    def __init__(self, d_head: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.d_head = d_head
        self.base = base

    def forward(
        self, positions: Int[Tensor, "*lead time"]
    ) -> tuple[Float[Tensor, "*lead time half"], Float[Tensor, "*lead time half"]]:
        """``(cos, sin)`` for :func:`glassformer.functional.apply_rotary`."""
        return rotary_angles(positions, self.d_head, self.base)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"d_head={self.d_head}, base={self.base:g}"
