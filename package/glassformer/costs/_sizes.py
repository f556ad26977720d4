"""Sizes that several costs are made of. Book: assembling"""

import math
from typing import NamedTuple

from glassformer.config import EncoderDecoderConfig, TransformerConfig
from glassformer.errors import ConfigError


def q_width(config: TransformerConfig) -> int:
    """Width of all queries of a token. Book: assembling"""
    return config.n_heads * config.d_head


def kv_width(config: TransformerConfig) -> int:
    """Width of all keys, or of all values, of a token. Book: assembling"""
    return config.kv_heads * config.d_head


class Heads(NamedTuple):
    """Some heads, their number and their widths. Book: pruning"""

    n_heads: int
    q_width: int
    kv_width: int


def gone(config: TransformerConfig, stack: str, kind: str) -> Heads:
    """The heads that pruning took, all layers of a stack together; costs are linear in them.

    Args:
        config: the model.
        stack: ``encoder`` or ``decoder``.
        kind: ``self_attn`` or ``cross_attn``.

    Book: pruning
    """
    names = [name for name, _ in config.pruned_heads]
    pruned = [name for name in names if name.startswith(f"{stack}.") and name.endswith(kind)]
    left = [config.head_counts(name) for name in pruned]
    heads = sum(config.n_heads - queries for queries, _ in left)
    kv_heads = sum(config.kv_heads - keys for _, keys in left)
    return Heads(heads, heads * config.d_head, kv_heads * config.d_head)


def is_gated(config: TransformerConfig) -> bool:
    """Whether the feed-forward network has a third matrix. Book: feed_forward"""
    return config.activation in ("swiglu", "geglu")


def expert_rows(config: TransformerConfig, n_tokens: int) -> int:
    """Rows that the feed-forward networks of a layer compute for ``n_tokens`` tokens.

    Experts with a capacity compute all their places, taken or not.

    Book: feed_forward
    """
    if config.n_experts is None:
        return n_tokens
    if config.expert_capacity is None:
        return n_tokens * config.experts_per_token
    fair_share = config.expert_capacity * n_tokens * config.experts_per_token / config.n_experts
    return config.n_experts * math.ceil(fair_share)  # rounded as the module rounds it


def source_of(config: TransformerConfig, source_length: int | None) -> int:
    """Length of the source, 0 for models without one; refuses one too many or too few.

    Book: cross_attention
    """
    if isinstance(config, EncoderDecoderConfig) == (source_length is None):
        rule = "reads a source: give its length" if source_length is None else "reads no source"
        raise ConfigError(
            f"source_length={source_length} does not fit: a model of kind {config.kind!r} {rule}"
        )
    return source_length or 0
