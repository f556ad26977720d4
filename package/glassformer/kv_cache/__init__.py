"""Keys and values of earlier tokens, kept so that a new token costs one query.

A cache belongs to the caller: ``model(tokens, cache=cache)`` reads it, adds to it and forgets it.
The model hands ``cache.layers[i]`` to block ``i`` and calls :meth:`advance` once, after the last
layer, so every layer sees the same length.

- :class:`GrowingCache` concatenates: simple, exact memory; for reading and short generations.
- :class:`StaticCache` writes into one buffer of ``max_len``; for speed and ``torch.compile``.
- :class:`SlidingWindowCache` forgets what a model with a sliding window no longer looks at.
- :class:`CrossCache` projects the encoder's output once; for encoder-decoder models.

Book: kv_cache
"""

from glassformer.kv_cache.base import KVCache, LayerCache
from glassformer.kv_cache.cross import CrossCache, CrossLayerCache
from glassformer.kv_cache.growing import GrowingCache
from glassformer.kv_cache.sliding import SlidingWindowCache
from glassformer.kv_cache.static import StaticCache

__all__ = [
    "CrossCache",
    "CrossLayerCache",
    "GrowingCache",
    "KVCache",
    "LayerCache",
    "SlidingWindowCache",
    "StaticCache",
]
