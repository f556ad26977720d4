"""What a model costs, from its config alone: parameters, multiply-adds, FLOPs, bytes.

One multiply-add (MAC) is two floating-point operations (FLOPs). Counted are the matrix products;
softmax, norms, activations and biases are left out, as is the half of the scores that a causal
kernel may skip.

Book: assembling
"""

from glassformer.costs.flops import (
    attention_macs,
    decode_flops,
    feed_forward_macs,
    forward_flops,
    training_flops,
)
from glassformer.costs.memory import activation_bytes, kv_cache_bytes
from glassformer.costs.parameters import parameter_count

__all__ = [
    "activation_bytes",
    "attention_macs",
    "decode_flops",
    "feed_forward_macs",
    "forward_flops",
    "kv_cache_bytes",
    "parameter_count",
    "training_flops",
]
