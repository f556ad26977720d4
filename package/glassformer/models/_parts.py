"""What the three models share: parts built from a config, positions and masks of a forward pass.

Book: assembling
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from glassformer.config import TransformerConfig
from glassformer.errors import CacheError, ShapeError
from glassformer.functional.masking import (
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
)
from glassformer.kv_cache import GrowingCache, KVCache, SlidingWindowCache, StaticCache
from glassformer.nn import (
    Block,
    FeedForward,
    InputEmbedding,
    LayerNorm,
    MixtureOfExperts,
    MultiHeadAttention,
    RelativePositionBias,
    RMSNorm,
    Rotary,
    Stack,
    TokenEmbedding,
)


def make_norm(config: TransformerConfig) -> nn.Module:
    """One norm of the config's kind and width. Book: layer_norm"""
    if config.norm == "rms":
        return RMSNorm(config.d_model, eps=config.norm_eps)
    return LayerNorm(config.d_model, eps=config.norm_eps)


def make_embedding(
    config: TransformerConfig,
    vocab_size: int,
    *,
    n_segments: int = 0,
    norm: nn.Module | None = None,
) -> InputEmbedding:
    """Token and position vectors of the config's kind. Book: embeddings"""
    return InputEmbedding(
        TokenEmbedding(vocab_size, config.d_model, pad_id=config.pad_id),
        max_len=config.max_len,
        positions=config.positions,
        n_segments=n_segments,
        norm=norm,
        dropout=config.dropout,
    )


def make_feed_forward(config: TransformerConfig) -> nn.Module:
    """The position-wise network, or several of which a router chooses. Book: feed_forward"""
    choices: dict[str, Any] = {
        "activation": config.activation,
        "bias": config.bias,
        "dropout": config.dropout,
    }
    if config.n_experts is None:
        return FeedForward(config.d_model, config.ff_size, **choices)
    return MixtureOfExperts(
        config.d_model,
        config.ff_size,
        n_experts=config.n_experts,
        experts_per_token=config.experts_per_token,
        capacity=config.expert_capacity,
        **choices,
    )


def make_relative(config: TransformerConfig, *, causal: bool) -> RelativePositionBias | None:
    """The bias of relative positions if the config asks for one. Book: embeddings"""
    if config.positions != "relative":
        return None
    return RelativePositionBias(
        config.n_heads,
        n_buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        bidirectional=not causal,
    )


def make_stack(
    config: TransformerConfig, n_layers: int, *, causal: bool = False, cross: bool = False
) -> Stack:
    """``n_layers`` blocks and the closing norm that pre-norm needs. Book: assembling"""
    attention = partial(
        MultiHeadAttention,
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        bias=config.bias,
        qkv_bias=config.qkv_bias,
        dropout=config.dropout,
    )
    blocks = [
        Block(
            attention(),
            make_feed_forward(config),
            make_norm=partial(make_norm, config),
            cross_attn=attention() if cross else None,
            norm_position=config.norm_position,
            dropout=config.dropout,
        )
        for _ in range(n_layers)
    ]
    stack = Stack(
        blocks,
        make_norm(config) if config.norm_position == "pre" else None,
        relative=make_relative(config, causal=causal),
        layer_drop=config.layer_drop,
    )
    own = "decoder." if causal else "encoder."
    for name, removed in config.pruned_heads:
        if name.startswith(own):
            part = stack.get_submodule(name.removeprefix(own))
            if isinstance(part, MultiHeadAttention):
                part.remove_heads(removed)
    return stack


def make_rotary(config: TransformerConfig) -> Rotary | None:
    """The rotary module if the config asks for one. Book: embeddings"""
    if config.positions != "rotary":
        return None
    return Rotary(config.d_head, base=config.rope_base)


def make_cache(
    config: TransformerConfig,
    weight: Tensor,
    *,
    static: bool,
    batch_size: int | None,
    max_len: int | None,
) -> KVCache:
    """An empty cache for a decoder whose parameters look like ``weight``. Book: kv_cache"""
    if not static and config.sliding_window is not None:
        return SlidingWindowCache(config.n_layers, config.sliding_window)
    if not static:
        return GrowingCache(config.n_layers)
    if batch_size is None:
        raise ShapeError("a static cache reserves its rows at once: give batch_size")
    attentions = [f"decoder.blocks.{i}.self_attn" for i in range(config.n_layers)]
    return StaticCache(
        config.n_layers,
        batch_size,
        [config.head_counts(name)[1] for name in attentions],
        config.max_len if max_len is None else max_len,
        config.d_head,
        device=weight.device,
        dtype=weight.dtype,
    )


def check_tokens(
    tokens: Tensor, config: TransformerConfig, *, cached: int = 0, name: str = "tokens"
) -> None:
    """Refuse what is no (batch, time) tensor of ids or is longer than ``max_len``.

    Book: assembling
    """
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            f"{name} must be int64 or int32 ids, but their dtype is {tokens.dtype}; "
            f"use {name}.long()"
        )
    if tokens.ndim != 2:
        raise ShapeError(
            f"{name} must have shape (batch, time), but got {tuple(tokens.shape)}; "
            f"for one sequence add a batch axis with {name}[None]"
        )
    length = cached + tokens.shape[1]
    if length > config.max_len:
        behind = f" behind {cached} cached" if cached else ""
        raise ShapeError(
            f"{tokens.shape[1]} tokens{behind} exceed max_len={config.max_len}; shorten the "
            "sequence, or build the model with a larger max_len"
        )


def cache_length(cache: KVCache | None) -> int:
    """Tokens in the cache; 0 without one, and 0 in compilation, which cannot wait for a device.

    Book: kv_cache
    """
    return 0 if cache is None or torch.compiler.is_compiling() else cache.length


class Pass(NamedTuple):
    """Positions and permissions of one forward pass. Book: masking"""

    positions: Tensor
    mask: Tensor | None
    is_causal: bool


def bidirectional_pass(tokens: Tensor, token_mask: Bool[Tensor, "batch time"] | None) -> Pass:
    """Every token sees every real token.

    Book: masking
    """
    if token_mask is None:
        return Pass(torch.arange(tokens.shape[1], device=tokens.device), None, False)
    check_token_mask(token_mask, tokens.shape[0], (tokens.shape[1],))
    return Pass(real_positions(token_mask), padding_mask(token_mask), False)


def causal_pass(
    tokens: Tensor,
    token_mask: Bool[Tensor, "batch k_len"] | None,
    cache: KVCache | None,
    window: int | None = None,
) -> Pass:
    """Every token sees itself and the real tokens before it, cached ones included.

    With a ``window`` it sees the last ``window`` of them only, itself included.

    The mask is built once here and serves all layers. Where plain causality says it all, there is
    no mask but the flag, so that the fused kernel can skip the hidden half.

    Book: masking
    """
    batch, q_len = tokens.shape
    check_window(cache, window)
    start = 0 if cache is None else cache.position
    first_key = 0 if cache is None else cache.first_key
    columns = torch.arange(q_len, device=tokens.device) + start
    k_len = q_len if cache is None else cache.k_len(q_len)
    if token_mask is None:
        all_in_sight = window is None or k_len <= window
        if isinstance(start, int) and (start == 0 or q_len == 1) and all_in_sight:
            return Pass(columns, None, start == 0)
        causal = _look_back(q_len, k_len, start - first_key, window, tokens.device)
        return Pass(columns, causal, False)
    lengths: tuple[int, ...] = (first_key + k_len,)
    if cache is not None and not isinstance(start, int):
        # A mask as wide as the static cache has one shape for all steps.
        lengths = () if torch.compiler.is_compiling() else (cache.length + q_len, k_len)
    check_token_mask(token_mask, batch, lengths)
    keys = F.pad(token_mask, (0, first_key + k_len - token_mask.shape[1]))[:, first_key:]
    causal = _look_back(q_len, k_len, start - first_key, window, tokens.device)
    positions = real_positions(token_mask).index_select(1, columns)
    return Pass(positions, combine_masks(padding_mask(keys), causal), False)


def check_window(cache: KVCache | None, window: int | None) -> None:
    """Refuse a cache that forgets what the model's window still shows. Book: kv_cache"""
    if cache is None or cache.window is None:
        return
    if window is None or window > cache.window:
        seen = "all tokens" if window is None else f"the last {window}"
        raise CacheError(
            f"this cache keeps the last {cache.window} tokens and this model looks back at {seen}; "
            "make one with this model's new_cache()"
        )


def _look_back(
    q_len: int, k_len: int, offset: int | Tensor, window: int | None, device: torch.device
) -> Tensor:
    if window is None:
        return causal_mask(q_len, k_len, offset=offset, device=device)
    return sliding_window_mask(q_len, window, k_len, offset=offset, device=device)


def real_positions(token_mask: Bool[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """0, 1, 2, … over the real tokens of each row, wherever its padding stands.

    Book: masking
    """
    return (token_mask.cumsum(dim=-1) - 1).clamp(min=0)


def check_token_mask(token_mask: Tensor, batch: int, lengths: tuple[int, ...]) -> None:
    """Refuse what is not boolean or is of none of ``lengths``; no lengths, no check of them.

    Book: masking
    """
    if token_mask.dtype != torch.bool:
        raise ShapeError(
            f"token_mask must be boolean with True = real token, but its dtype is "
            f"{token_mask.dtype}; use token_mask.bool()"
        )
    fits = token_mask.ndim == 2 and token_mask.shape[0] == batch
    if not fits or (lengths and token_mask.shape[1] not in lengths):
        wanted = " or ".join(f"({batch}, {n})" for n in lengths) or f"({batch}, cached + new)"
        raise ShapeError(
            f"token_mask has shape {tuple(token_mask.shape)} but must be {wanted}: one entry for "
            "every token, cached ones included"
        )
