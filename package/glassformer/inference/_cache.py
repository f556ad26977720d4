"""The cache of a prepared decoder: no copy per token, no slot that attention must not see.

Book: kv_cache
"""

from jaxtyping import Int
from torch import Tensor

from glassformer.kv_cache import KVCache
from glassformer.kv_cache._checks import bytes_of, check_fits

__all__ = ["RoomyCache"]

MIN_ROOM = 64  # tokens that a new cache has room for


class _RoomyLayer:
    def __init__(self, owner: "RoomyCache") -> None:
        self.owner = owner
        self.kv: Tensor | None = None  # (2, batch, n_kv_heads, room, d_head)

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.owner.length
        stop = kept + k.shape[2]
        if self.kv is not None and kept:
            check_fits(k, self.kv[0])
        if self.kv is None or not kept or stop > self.kv.shape[3]:
            self.kv = self._with_room(k, kept, stop)
        keys, values = self.kv.unbind()
        keys[:, :, kept:stop], values[:, :, kept:stop] = k, v
        return keys[:, :, :stop], values[:, :, :stop]

    def _with_room(self, k: Tensor, kept: int, stop: int) -> Tensor:
        room = max(MIN_ROOM, 1 << (stop - 1).bit_length())
        new = k.new_empty(2, *k.shape[:2], room, k.shape[3])
        if self.kv is not None and kept:
            new[:, :, :, :kept] = self.kv[:, :, :, :kept]
        return new


class RoomyCache(KVCache):
    """Buffers that double when they are full; attention sees the part in use.

    Args:
        n_layers: number of layers of the model.

    Book: kv_cache
    """

    def __init__(self, n_layers: int) -> None:
        self.layers: list[_RoomyLayer] = [_RoomyLayer(self) for _ in range(n_layers)]
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def position(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        return sum(bytes_of(layer.kv) for layer in self.layers if layer.kv is not None)

    def k_len(self, n_new: int) -> int:
        return self._length + n_new

    def advance(self, n_new: int) -> None:
        self._length += n_new

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        for layer in self.layers:
            if layer.kv is not None:
                layer.kv = layer.kv.index_select(1, indices)

    def crop(self, length: int) -> None:
        self._check_crop(length)
        self._length = length
