"""Attention that listens to few: the k keys with the highest scores, and no others.

Book: pruning
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import ConfigError
from glassformer.functional._checks import check_values
from glassformer.functional.attention import attention_weights, weighted_values

__all__ = ["keep_top_weights", "top_k_attention"]


def top_k_attention(
    q: Float[Tensor, "batch n_heads q_len d_head"],
    k: Float[Tensor, "batch n_kv_heads k_len d_head"],
    v: Float[Tensor, "batch n_kv_heads k_len d_value"],
    *,
    top_k: int,
    mask: Bool[Tensor, "*broadcast q_or_one k_or_one"] | None = None,
    bias: Float[Tensor, "*bias q_or_one2 k_or_one2"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch n_heads q_len d_value"]:
    """:func:`attend` over the ``top_k`` visible keys of each query with the highest scores.

    A query with no more than ``top_k`` visible keys attends as always. All scores are computed
    before the best are known: what is saved is the reading of values, not the comparing.

    Args:
        q, k, v, mask, bias, is_causal, scale: as in :func:`attend`.
        top_k: keys that each query of each head may listen to.

    Raises:
        ConfigError: ``top_k`` below 1.
        MaskError, ShapeError: as in :func:`attend`.

    Source: Zhao et al. 2019. Book: pruning
    """
    check_values(k, v)
    weights = attention_weights(q, k, mask=mask, bias=bias, is_causal=is_causal, scale=scale)
    return weighted_values(keep_top_weights(weights, top_k), v)


def keep_top_weights(
    weights: Float[Tensor, "batch n_heads q_len k_len"], top_k: int
) -> Float[Tensor, "batch n_heads q_len k_len"]:
    """The ``top_k`` largest weights of each row, scaled up to the sum of one; the others zero.

    It is the softmax over the ``top_k`` highest scores alone. Of equal weights at the edge some
    are kept and some not, so that never more than ``top_k`` remain. A row of zeros stays so.

    Args:
        weights: from :func:`attention_weights`.
        top_k: weights to keep; a row that has no more is unchanged.

    Raises:
        ConfigError: ``top_k`` below 1.

    Source: Zhao et al. 2019. Book: pruning
    """
    if isinstance(top_k, bool) or top_k < 1:
        raise ConfigError(f"top_k={top_k} must be at least 1: a query has to listen to something")
    if top_k >= weights.shape[-1]:
        return weights
    largest, places = weights.topk(top_k, dim=-1)
    total = largest.float().sum(-1, keepdim=True)
    largest = largest / total.masked_fill(total == 0, 1.0).to(largest.dtype)
    return torch.zeros_like(weights).scatter(-1, places, largest)
