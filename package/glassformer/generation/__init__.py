"""Let a trained decoder write: greedy or sampled, with or without a cache.

Book: kv_cache
"""

from glassformer.generation.generate import (
    Generation,
    StreamStep,
    decode_step,
    generate,
    prefill,
    stream,
)
from glassformer.generation.samplers import (
    Choice,
    apply_temperature,
    greedy,
    keep_top_k,
    keep_top_p,
    sample,
    sampler,
)

__all__ = [
    "Choice",
    "Generation",
    "StreamStep",
    "apply_temperature",
    "decode_step",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "prefill",
    "sample",
    "sampler",
    "stream",
]
