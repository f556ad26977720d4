"""What every cache of keys and values can do.

Book: kv_cache
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import CacheError

__all__ = ["KVCache", "LayerCache"]


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
    window: int | None = None
    """How many tokens a query sees at most, itself included; ``None`` for all of them."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of tokens read so far, and not taken back by :meth:`crop`."""

    @property
    @abstractmethod
    def position(self) -> int | Tensor:
        """Position of the next token: ``length``, as a tensor where compilation wants one."""

    @property
    def first_key(self) -> int:
        """Position of the first of the keys that attention will see."""
        return 0

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
        """Refuse to crop to what was never there."""
        if not 0 <= length <= self.length:
            raise CacheError(
                f"cannot crop a cache of {self.length} tokens to {length}; "
                f"give a length from 0 to {self.length}"
            )
