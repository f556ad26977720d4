"""Scaled dot-product attention as two pure functions.

Axes: B batch, H query heads, K key/value heads, T queries, S keys, E width of a head.

Conventions, the same on every path: masks are boolean and **True means "may attend"**; a query
that may attend to nothing gets zeros, forward and backward; the softmax runs in float32; with
``is_causal`` the last query sees the last key, whatever the two lengths.

Book: attention
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.functional._checks import check_heads, check_mask, check_values
from glassformer.functional.masking import causal_mask

__all__ = ["attend", "attention_weights", "weighted_values"]


def attention_weights(
    q: Float[Tensor, "batch n_heads q_len d_head"],
    k: Float[Tensor, "batch n_kv_heads k_len d_head"],
    *,
    mask: Bool[Tensor, "*broadcast q_or_one k_or_one"] | None = None,
    bias: Float[Tensor, "*bias q_or_one2 k_or_one2"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch n_heads q_len k_len"]:
    """Who listens to whom: ``softmax(q @ k^T * scale + bias)`` over the visible keys.

    Args:
        q: queries.
        k: keys; with fewer heads than ``q``, each serves a group of neighbouring query heads.
        mask: True where a query may attend; (T, S) or four axes that broadcast to (B, H, T, S).
        bias: added to the scores before the softmax, such as ALiBi's.
        is_causal: also hide the keys that come after the query.
        scale: multiplies the scores; ``1 / sqrt(d_head)`` when ``None``.

    Returns:
        Weights in the dtype of ``q``. Each row sums to one, or to zero if nothing is visible.

    Raises:
        MaskError: ``mask`` is not boolean, or is not of one of the two shapes.
        ShapeError: batches, heads or widths do not fit together.

    Source: Vaswani et al. 2017, equation 1. Book: attention
    """
    check_heads(q, k)
    mask = _visible(q, k, mask, is_causal)
    grouped = (q * _scale(q, scale)).unflatten(1, (k.shape[1], -1))  # (B, K, H/K, T, E)
    scores = (grouped @ k.unsqueeze(2).mT).flatten(1, 2)  # (B, H, T, S)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return weights.to(q.dtype)


def attend(
    q: Float[Tensor, "batch n_heads q_len d_head"],
    k: Float[Tensor, "batch n_kv_heads k_len d_head"],
    v: Float[Tensor, "batch n_kv_heads k_len d_value"],
    *,
    mask: Bool[Tensor, "*broadcast q_or_one k_or_one"] | None = None,
    bias: Float[Tensor, "*bias q_or_one2 k_or_one2"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    eager: bool = False,
) -> Float[Tensor, "batch n_heads q_len d_value"]:
    """Listen: the average of the values, weighted by :func:`attention_weights`.

    The default is PyTorch's fused kernel, which never stores the (T, S) weights; ``eager=True``
    computes them step by step. Both give the same numbers.

    Args:
        q, k, mask, bias, is_causal, scale: as in :func:`attention_weights`.
        v: values, one for each key.
        dropout: share of the weights set to zero, the rest scaled up to keep the mean.
        eager: compute the weights explicitly.

    Raises:
        MaskError, ShapeError: as in :func:`attention_weights`, or keys and values do not pair up.

    Source: Vaswani et al. 2017, equation 1; Dao et al. 2022 for the fused kernel. Book: attention
    """
    check_values(k, v)
    if eager:
        weights = attention_weights(q, k, mask=mask, bias=bias, is_causal=is_causal, scale=scale)
        return weighted_values(F.dropout(weights, dropout), v)
    check_heads(q, k)
    if mask is None and bias is None and is_causal and q.shape[2] == k.shape[2]:
        return _fused(q, k, v, None, True, scale, dropout)
    mask = _visible(q, k, mask, is_causal)
    if mask is None:
        return _fused(q, k, v, bias, False, scale, dropout)
    # Kernels differ on rows that see nothing: let such a row see all, then set its output to zero.
    blind = ~mask.any(dim=-1, keepdim=True)
    shown = mask | blind
    if bias is not None:
        shown = bias.to(q.dtype).masked_fill(~shown, -math.inf)
    return _fused(q, k, v, shown, False, scale, dropout).masked_fill(blind, 0.0)


def weighted_values(
    weights: Float[Tensor, "batch n_heads q_len k_len"],
    v: Float[Tensor, "batch n_kv_heads k_len d_value"],
) -> Float[Tensor, "batch n_heads q_len d_value"]:
    """``weights @ v`` where each value head serves a group of neighbouring query heads.

    Book: attention
    """
    grouped = weights.unflatten(1, (v.shape[1], -1))  # (B, K, H/K, T, S)
    return (grouped @ v.unsqueeze(2)).flatten(1, 2)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    dropout: float,
) -> Tensor:
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
        dropout_p=dropout,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _visible(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """``mask`` and causality as one boolean mask, or None if every query sees every key."""
    if mask is not None:
        check_mask(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    q_len, k_len = q.shape[2], k.shape[2]
    if not is_causal or (q_len == 1 and k_len > 0):  # a lone query is the last one: it sees all
        return mask
    causal = causal_mask(q_len, k_len, device=q.device)
    return causal if mask is None else mask & causal
