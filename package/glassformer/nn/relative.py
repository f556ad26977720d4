"""Positions as a bias on the scores.

Book: embeddings
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.functional.positions import relative_position_buckets

__all__ = ["RelativePositionBias"]


class RelativePositionBias(nn.Module):
    """A learned number for each head and each bucket of distances, added to the scores.

    Only distances matter, so padding on either side of a row changes nothing between its tokens.

    Args:
        n_heads: number of query heads.
        n_buckets, max_distance, bidirectional: as in
            :func:`glassformer.functional.relative_position_buckets`.

    Source: Raffel et al. 2020, section 2.1. Book: embeddings
    """

    def __init__(
        self,
        n_heads: int,
        *,
        n_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        self.n_buckets = n_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.zeros(n_buckets, n_heads))

    def forward(
        self, q_len: int, k_len: int, *, offset: int | Int[Tensor, ""] = 0
    ) -> Float[Tensor, "1 n_heads {q_len} {k_len}"]:
        """The bias of ``q_len`` queries, the first of them at position ``offset`` of the keys."""
        query = torch.arange(q_len, device=self.weight.device) + offset
        key = torch.arange(k_len, device=self.weight.device)
        buckets = relative_position_buckets(
            key - query[:, None],
            n_buckets=self.n_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return self.weight[buckets].permute(2, 0, 1)[None]

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"n_buckets={self.n_buckets}, max_distance={self.max_distance}"
