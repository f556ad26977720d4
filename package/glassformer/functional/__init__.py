"""Pure functions on tensors: attention, masks, positions."""

from glassformer.functional.attention import attend, attention_weights, weighted_values
from glassformer.functional.flash import flash_attend
from glassformer.functional.masking import (
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
    token_mask_from_lengths,
)
from glassformer.functional.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    relative_position_buckets,
    rotary_angles,
    sinusoidal_positions,
)
from glassformer.functional.sparse import keep_top_weights, top_k_attention

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary",
    "attend",
    "attention_weights",
    "causal_mask",
    "combine_masks",
    "flash_attend",
    "keep_top_weights",
    "padding_mask",
    "relative_position_buckets",
    "rotary_angles",
    "sinusoidal_positions",
    "sliding_window_mask",
    "token_mask_from_lengths",
    "top_k_attention",
    "weighted_values",
]
