"""Masks as permissions: boolean, True = may attend.

Each builder is one comparison of positions. Masks combine with ``&`` and only then reach the
scores. ``token_mask`` (B, S) says which tokens are real and enters models; a ``mask`` that
broadcasts to (B, H, T, S) says who may attend to whom and enters attention.

Book: masking
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.errors import MaskError

__all__ = [
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "sliding_window_mask",
    "token_mask_from_lengths",
]


def causal_mask(
    q_len: int,
    k_len: int | None = None,
    *,
    offset: int | Int[Tensor, ""] | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "q_len k_len"]:
    """A query sees its own position and all earlier ones.

    Args:
        q_len: number of queries.
        k_len: number of keys; ``q_len`` when ``None``.
        offset: position of the first query among the keys. The default ``k_len - q_len`` puts the
            last query on the last key, which is what a cache of earlier keys needs.
        device: where the mask is made.

    Returns:
        (q_len, k_len) with True at ``[t, s]`` where ``s <= t + offset``.

    Source: Vaswani et al. 2017, section 3.2.3. Book: masking
    """
    query, key = _positions(q_len, k_len, offset, device)
    return key <= query


def sliding_window_mask(
    q_len: int,
    window: int,
    k_len: int | None = None,
    *,
    offset: int | Int[Tensor, ""] | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "q_len k_len"]:
    """A query sees the last ``window`` positions up to and including its own.

    Args are those of :func:`causal_mask`; ``window`` is at least 1.

    Raises:
        MaskError: ``window`` below 1.

    Source: Beltagy et al. 2020, section 3.1 (its causal form). Book: masking
    """
    if window < 1:
        raise MaskError(f"window={window} hides even the token itself; give a window of at least 1")
    query, key = _positions(q_len, k_len, offset, device)
    return (key <= query) & (key > query - window)


def padding_mask(token_mask: Bool[Tensor, "batch k_len"]) -> Bool[Tensor, "batch 1 1 k_len"]:
    """Nobody attends to padding: ``token_mask`` with axes for heads and queries.

    Book: masking
    """
    return token_mask[:, None, None, :]


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Allowed by all of ``masks``; ``None`` allows everything.

    Book: masking
    """
    combined: Tensor | None = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined & mask
    return combined


def token_mask_from_lengths(
    lengths: Int[Tensor, " batch"], max_len: int | None = None
) -> Bool[Tensor, "batch max_len"]:
    """True for the first ``lengths[b]`` positions of each row (padding on the right).

    Book: masking
    """
    width = int(lengths.max()) if max_len is None else max_len
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def _positions(
    q_len: int,
    k_len: int | None,
    offset: int | Tensor | None,
    device: torch.device | str | None,
) -> tuple[Tensor, Tensor]:
    """Positions of queries as a column and of keys as a row."""
    k_len = q_len if k_len is None else k_len
    offset = k_len - q_len if offset is None else offset
    query = torch.arange(q_len, device=device)[:, None] + offset
    key = torch.arange(k_len, device=device)[None, :]
    return query, key
