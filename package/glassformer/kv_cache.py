"""Keys and values of earlier tokens, kept so that a new token costs one query.

A cache belongs to the caller: ``model(tokens, cache=cache)`` reads it, adds to it and forgets it.
The model hands ``cache.layers[i]`` to block ``i`` and calls :meth:`advance` once, after the last
layer, so every layer sees the same length.

- :class:`GrowingCache` concatenates: simple, exact memory; for reading and short generations.
- :class:`StaticCache` writes into one buffer of ``max_len``; for speed and ``torch.compile``.
- :class:`CrossCache` projects the encoder's output once; for encoder-decoder models.

Book: kv_cache
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import CacheError

__all__ = [
    "CrossCache",
    "CrossLayerCache",
    "GrowingCache",
    "KVCache",
    "LayerCache",
    "StaticCache",
]


@runtime_checkable
class LayerCache(Protocol):
    """What attention needs of a cache: give new keys and values, get all of them. Book: kv_cache"""

    def update(
        self,
        k: Float[Tensor, "batch n_kv_heads time d_head"],
        v: Float[Tensor, "batch n_kv_heads time d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Add ``k`` and ``v``; return everything that is kept, the new ones included."""


class KVCache(ABC):
    """Keys and values of the self-attention of every layer. Book: kv_cache"""

    layers: Sequence[LayerCache]

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of tokens kept."""

    @property
    @abstractmethod
    def position(self) -> int | Tensor:
        """Position of the next token: ``length``, as a tensor where compilation wants one."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes of the kept keys and values, all layers together."""

    @abstractmethod
    def k_len(self, n_new: int) -> int:
        """Number of keys that attention will see when ``n_new`` tokens are added."""

    @abstractmethod
    def advance(self, n_new: int) -> None:
        """Count ``n_new`` tokens that all layers have added. Called by the model."""

    @abstractmethod
    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        """Row ``i`` becomes what row ``indices[i]`` was, as beam search needs."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""

    def reset(self) -> None:
        """Forget everything."""
        self.crop(0)

    def _check_crop(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise CacheError(
                f"cannot crop a cache of {self.length} tokens to {length}; "
                f"give a length from 0 to {self.length}"
            )


class _GrowingLayer:
    def __init__(self, owner: "GrowingCache") -> None:
        self.owner = owner
        self.kv: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.owner.length  # whatever an interrupted forward left behind it is cut off here
        if self.kv is not None and kept:
            old_k, old_v = self.kv
            _check_fits(k, old_k)
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
        return sum(_bytes(*layer.kv) for layer in self.layers if layer.kv is not None)

    def k_len(self, n_new: int) -> int:
        return self._length + n_new

    def advance(self, n_new: int) -> None:
        self._length += n_new

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        for layer in self.layers:
            if layer.kv is not None:
                layer.kv = (layer.kv[0][indices], layer.kv[1][indices])

    def crop(self, length: int) -> None:
        self._check_crop(length)
        self._length = length
        for layer in self.layers:
            if layer.kv is not None:
                k, v = layer.kv
                layer.kv = (k[:, :, :length].clone(), v[:, :, :length].clone()) if length else None


class _StaticLayer:
    def __init__(self, owner: "StaticCache", k: Tensor, v: Tensor) -> None:
        self.owner = owner
        self.k = k
        self.v = v

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        _check_fits(k, self.k)
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
        n_kv_heads: key/value heads of a layer.
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
        n_kv_heads: int,
        max_len: int,
        d_head: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (batch_size, n_kv_heads, max_len, d_head)
        self.max_len = max_len
        self._position = torch.zeros((), dtype=torch.long, device=device)
        self.layers: list[_StaticLayer] = [
            _StaticLayer(
                self,
                torch.zeros(shape, device=device, dtype=dtype),
                torch.zeros(shape, device=device, dtype=dtype),
            )
            for _ in range(n_layers)
        ]

    @property
    def length(self) -> int:
        return int(self._position)

    @property
    def position(self) -> Tensor:
        return self._position

    @property
    def bytes(self) -> int:
        return sum(_bytes(layer.k, layer.v) for layer in self.layers)

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
            layer.k.copy_(layer.k[indices])
            layer.v.copy_(layer.v[indices])

    def crop(self, length: int) -> None:
        self._check_crop(length)
        self._position.fill_(length)


class CrossLayerCache:
    """Projected keys and values of one cross-attention. Book: kv_cache"""

    def __init__(self) -> None:
        self.kv: tuple[Tensor, Tensor] | None = None

    def fetch(
        self, project: Callable[[Tensor], tuple[Tensor, Tensor]], memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The kept keys and values; the first call makes them from ``memory``."""
        if self.kv is None:
            if memory is None:
                raise CacheError("the cross cache is empty, so the encoder's output is needed once")
            self.kv = project(memory)
        k = self.kv[0]
        if memory is not None and memory.shape[:2] != (k.shape[0], k.shape[2]):
            raise CacheError(
                f"the cross cache holds {k.shape[0]} sources of {k.shape[2]} tokens and was given "
                f"{memory.shape[0]} of {memory.shape[1]}; reset it for a new source"
            )
        return self.kv


class CrossCache:
    """Keys and values of the encoder's output, projected once per source.

    Args:
        n_layers: number of decoder layers.

    Book: kv_cache
    """

    def __init__(self, n_layers: int) -> None:
        self.layers: list[CrossLayerCache] = [CrossLayerCache() for _ in range(n_layers)]

    @property
    def bytes(self) -> int:
        """Bytes of the kept keys and values, all layers together."""
        return sum(_bytes(*layer.kv) for layer in self.layers if layer.kv is not None)

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        """Row ``i`` becomes what row ``indices[i]`` was."""
        for layer in self.layers:
            if layer.kv is not None:
                layer.kv = (layer.kv[0][indices], layer.kv[1][indices])

    def reset(self) -> None:
        """Forget the source, so that the next one is projected."""
        for layer in self.layers:
            layer.kv = None


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _check_fits(new: Tensor, kept: Tensor) -> None:
    if (new.shape[1], new.shape[3]) != (kept.shape[1], kept.shape[3]):
        raise CacheError(
            f"this cache holds {kept.shape[1]} heads of width {kept.shape[3]} and was given "
            f"{new.shape[1]} of {new.shape[3]}; make one with this model's new_cache()"
        )
    if new.shape[0] != kept.shape[0]:
        raise CacheError(
            f"this cache holds {kept.shape[0]} rows and was given {new.shape[0]}; "
            "make one cache per batch, or reorder it to the new rows"
        )
