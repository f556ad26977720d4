"""Let a trained model write: greedy, sampled or by beam search, with or without a cache.

Book: kv_cache
"""

from glassformer.generation.generate import Generation, StreamStep, generate, stream
from glassformer.generation.samplers import (
    Choice,
    Shape,
    Text,
    apply_temperature,
    greedy,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    sample,
    sampler,
    shaper,
)
from glassformer.generation.step import Source, Writer, decode_step, encode_source, prefill

__all__ = [
    "Choice",
    "Generation",
    "Shape",
    "Source",
    "StreamStep",
    "Text",
    "Writer",
    "apply_temperature",
    "decode_step",
    "encode_source",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "penalise_repetition",
    "prefill",
    "sample",
    "sampler",
    "shaper",
    "stream",
]
