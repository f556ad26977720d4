"""What every attention refuses, on whatever path. Book: attention"""

import torch
from torch import Tensor

from glassformer.errors import MaskError, ShapeError


def check_heads(q: Tensor, k: Tensor) -> None:
    """Refuse queries and keys whose widths, heads or batches do not fit. Book: attention"""
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"queries are {q.shape[-1]} wide and keys {k.shape[-1]}; "
            "a dot product needs equal widths (d_head)"
        )
    if q.shape[1] % k.shape[1]:
        raise ShapeError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly; "
            "n_kv_heads must divide n_heads"
        )
    if q.shape[0] != k.shape[0]:
        raise ShapeError(
            f"{q.shape[0]} rows of queries and {k.shape[0]} of keys; repeat the smaller batch"
        )


def check_values(k: Tensor, v: Tensor) -> None:
    """Refuse keys and values that do not pair up. Book: attention"""
    if k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            f"keys of shape {tuple(k.shape)} and values of shape {tuple(v.shape)}: every key needs "
            "its value, so only the last axes may differ"
        )


def check_mask(mask: Tensor, full: tuple[int, ...]) -> None:
    """Refuse what is not boolean or does not broadcast to ``full``. Book: attention"""
    if mask.dtype != torch.bool:
        raise MaskError(
            f"a mask must be boolean with True = may attend, but its dtype is {mask.dtype}; "
            "give added terms as `bias`, and turn a 0/1 mask into one with `mask.bool()`"
        )
    if mask.ndim == 3:
        raise MaskError(
            f"a mask of shape {tuple(mask.shape)} is ambiguous: is its first axis the batch or the "
            "heads? Use mask.unsqueeze(1) for one mask per sample, mask.unsqueeze(0) for one per "
            "head"
        )
    sizes = zip(mask.shape, full[-mask.ndim :], strict=False)
    if mask.ndim not in (2, 4) or any(own not in (1, wanted) for own, wanted in sizes):
        raise MaskError(
            f"a mask of shape {tuple(mask.shape)} does not broadcast to (batch, heads, time, "
            f"source) = {full}; give (time, source), or four axes with 1 where all share it"
        )
