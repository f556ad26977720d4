"""The cache of a model that looks back a fixed number of tokens and never further.

Book: kv_cache
"""

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.errors import CacheError
from glassformer.kv_cache._checks import bytes_of, check_fits
from glassformer.kv_cache.base import KVCache

__all__ = ["SlidingWindowCache"]


class _SlidingLayer:
    def __init__(self, owner: "SlidingWindowCache") -> None:
        self.owner = owner
        self.first = 0  # position of the first kept token
        self.kv: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first, length = self.owner.first_key, self.owner.length
        if self.kv is not None and length > first:
            old_k, old_v = self.kv
            check_fits(k, old_k)
            seen = slice(first - self.first, length - self.first)
            k = torch.cat((old_k[:, :, seen], k), dim=2)
            v = torch.cat((old_v[:, :, seen], v), dim=2)
        self.first, self.kv = first, (k, v)
        return k, v

    def keep(self, first: int, stop: int) -> None:
        """Drop what lies outside these positions, and give its memory back."""
        first = max(first, self.first)
        if self.kv is None or (first == self.first and stop - first == self.kv[0].shape[2]):
            return
        k, v = (x[:, :, first - self.first : stop - self.first].clone() for x in self.kv)
        self.first, self.kv = first, (k, v)


class SlidingWindowCache(KVCache):
    """Keeps the last ``window`` tokens: its bytes stop growing, its positions go on.

    Attention gets the ``window - 1`` tokens before the new ones and the new ones themselves; the
    model's own mask gives each of those its window. For a model whose config has a
    ``sliding_window`` this loses nothing.

    Args:
        n_layers: number of layers of the model.
        window: tokens that a query sees, itself included.

    Raises:
        CacheError: a window below 1, a batch or model of another size, or a crop to a length whose
            next token would need what is forgotten.

    Source: Beltagy et al. 2020, section 3.1; Jiang et al. 2023 for the cache. Book: kv_cache
    """

    window: int

    def __init__(self, n_layers: int, window: int) -> None:
        if window < 1:
            raise CacheError(f"window={window} keeps not even the token itself; give at least 1")
        self.window = window
        self.layers: list[_SlidingLayer] = [_SlidingLayer(self) for _ in range(n_layers)]
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def position(self) -> int:
        return self._length

    @property
    def first_key(self) -> int:
        return self._first_needed(self._length)

    @property
    def bytes(self) -> int:
        return sum(bytes_of(*layer.kv) for layer in self.layers if layer.kv is not None)

    def k_len(self, n_new: int) -> int:
        return self._length - self.first_key + n_new

    def advance(self, n_new: int) -> None:
        self._length += n_new
        for layer in self.layers:
            layer.keep(self._length - self.window, self._length)

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        for layer in self.layers:
            if layer.kv is not None:
                k, v = layer.kv
                layer.kv = (k.index_select(0, indices), v.index_select(0, indices))

    def crop(self, length: int) -> None:
        self._check_crop(length)
        needed, first = self._first_needed(length), max(layer.first for layer in self.layers)
        if needed < min(length, first):
            raise CacheError(
                f"after a crop to {length} tokens the next one needs those from position {needed} "
                f"on, and this cache forgot all before {first}; crop less, or use a GrowingCache "
                "where tokens are taken back"
            )
        self._length = length
        for layer in self.layers:
            if layer.first < length:
                layer.keep(layer.first, length)
            else:
                layer.kv = None

    def _first_needed(self, length: int) -> int:
        """Position of the first token that the next one sees behind ``length`` tokens."""
        return max(0, length - self.window + 1)
