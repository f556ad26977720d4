"""The cache for speed: buffers of a fixed size, so shapes never change.

Book: kv_cache
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.errors import CacheError
from glassformer.kv_cache._checks import bytes_of, check_fits
from glassformer.kv_cache.base import KVCache

__all__ = ["StaticCache"]


class _StaticLayer:
    def __init__(self, owner: "StaticCache", k: Tensor, v: Tensor) -> None:
        self.owner = owner
        self.k = k
        self.v = v

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        check_fits(k, self.k)
        where = self.owner.position + torch.arange(k.shape[2], device=k.device)
        self.k.index_copy_(2, where, k.to(self.k.dtype))
        self.v.index_copy_(2, where, v.to(self.v.dtype))
        return self.k, self.v


class StaticCache(KVCache):
    """Writes into buffers of a fixed size, so shapes never change and one compilation serves all.

    Attention sees all ``max_len`` slots; the model's mask hides those not yet written.

    Args:
        n_layers: number of layers of the model.
        batch_size: number of rows.
        n_kv_heads: key/value heads of each layer; one number if they have equally many.
        max_len: tokens that fit.
        d_head: width of a head.
        device, dtype: of the buffers.

    Raises:
        CacheError: on a batch of another size, or (outside compilation) when it is full.

    Book: kv_cache
    """

    def __init__(
        self,
        n_layers: int,
        batch_size: int,
        n_kv_heads: int | Sequence[int],
        max_len: int,
        d_head: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        counts = [n_kv_heads] * n_layers if isinstance(n_kv_heads, int) else n_kv_heads
        shapes = [(batch_size, n, max_len, d_head) for n in counts]
        self.max_len = max_len
        self._position = torch.zeros((), dtype=torch.long, device=device)
        self.layers: list[_StaticLayer] = [
            _StaticLayer(
                self,
                torch.zeros(shape, device=device, dtype=dtype),
                torch.zeros(shape, device=device, dtype=dtype),
            )
            for shape in shapes
        ]

    @property
    def length(self) -> int:
        return int(self._position)

    @property
    def position(self) -> Tensor:
        return self._position

    @property
    def bytes(self) -> int:
        return sum(bytes_of(layer.k, layer.v) for layer in self.layers)

    def k_len(self, n_new: int) -> int:
        # Reading the length waits for the device, and compilation allows no such wait.
        if not torch.compiler.is_compiling() and self.length + n_new > self.max_len:
            raise CacheError(
                f"{n_new} new tokens do not fit behind the {self.length} in a cache of "
                f"max_len={self.max_len}; make a longer one, or crop or reset this one"
            )
        return self.max_len

    def advance(self, n_new: int) -> None:
        self._position.add_(n_new)

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        for layer in self.layers:
            if len(indices) != len(layer.k):
                raise CacheError(
                    f"a static cache keeps its {len(layer.k)} rows and was given {len(indices)} "
                    "indices; give one index per row, or make a new cache"
                )
            layer.k.copy_(layer.k.index_select(0, indices))
            layer.v.copy_(layer.v.index_select(0, indices))

    def crop(self, length: int) -> None:
        self._check_crop(length)
        self._position.fill_(length)
