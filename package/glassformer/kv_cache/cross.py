"""The cache of cross-attention: the encoder's output, projected once.

Book: kv_cache
"""

from collections.abc import Callable

from jaxtyping import Int
from torch import Tensor

from glassformer.errors import CacheError
from glassformer.kv_cache._checks import bytes_of

__all__ = ["CrossCache", "CrossLayerCache"]


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
        return sum(bytes_of(*layer.kv) for layer in self.layers if layer.kv is not None)

    def reorder(self, indices: Int[Tensor, " batch"]) -> None:
        """Row ``i`` becomes what row ``indices[i]`` was."""
        for layer in self.layers:
            if layer.kv is not None:
                k, v = layer.kv
                layer.kv = (k.index_select(0, indices), v.index_select(0, indices))

    def reset(self) -> None:
        """Forget the source, so that the next one is projected."""
        for layer in self.layers:
            layer.kv = None
