"""The cache to learn from: it concatenates.

Book: kv_cache
"""

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.kv_cache._checks import bytes_of, check_fits
from glassformer.kv_cache.base import KVCache

__all__ = ["GrowingCache"]


class _GrowingLayer:
    def __init__(self, owner: "GrowingCache") -> None:
        self.owner = owner
        self.kv: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.owner.length  # whatever an interrupted forward left behind it is cut off here
        if self.kv is not None and kept:
            old_k, old_v = self.kv
            check_fits(k, old_k)
            k = torch.cat((old_k[:, :, :kept], k), dim=2)
            v = torch.cat((old_v[:, :, :kept], v), dim=2)
        self.kv = (k, v)
        return k, v


class GrowingCache(KVCache):
    """Concatenates new keys and values to the old ones.

    Args:
        n_layers: number of layers of the model.

    Book: kv_cache
    """

    def __init__(self, n_layers: int) -> None:
        self.layers: list[_GrowingLayer] = [_GrowingLayer(self) for _ in range(n_layers)]
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def position(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        return sum(bytes_of(*layer.kv) for layer in self.layers if layer.kv is not None)

    def k_len(self, n_new: int) -> int:
        return self._length + n_new

    def advance(self, n_new: int) -> None:
        self._length += n_new

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        for layer in self.layers:
            if layer.kv is not None:
                k, v = layer.kv
                layer.kv = (k.index_select(0, indices), v.index_select(0, indices))

    def crop(self, length: int) -> None:
        self._check_crop(length)
        self._length = length
        for layer in self.layers:
            if layer.kv is not None:
                k, v = layer.kv
                layer.kv = (k[:, :, :length].clone(), v[:, :, :length].clone()) if length else None
