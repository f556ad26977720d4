"""Let a trained model write: greedy, sampled, by beam search or with the help of a draft model.

Book: kv_cache
"""

from glassformer.generation.beam import Hypothesis, beam_search
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
from glassformer.generation.speculative import Speculation, speculate, verify_draft
from glassformer.generation.step import Source, Writer, decode_step, encode_source, predict, prefill
from glassformer.generation.trace import TraceStep, trace_generation

__all__ = [
    "Choice",
    "Generation",
    "Hypothesis",
    "Shape",
    "Source",
    "Speculation",
    "StreamStep",
    "Text",
    "TraceStep",
    "Writer",
    "apply_temperature",
    "beam_search",
    "decode_step",
    "encode_source",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "penalise_repetition",
    "predict",
    "prefill",
    "sample",
    "sampler",
    "shaper",
    "speculate",
    "stream",
    "trace_generation",
    "verify_draft",
]
