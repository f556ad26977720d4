"""FlashAttention to learn from: exact attention that never holds the (T, S) weights.

Queries and keys are cut into tiles. A running maximum and a running sum turn the softmax into
something that can be updated tile by tile; the backward pass keeps one number per query, the log
of its sum of exponentials, and computes the weights of each tile once more.

The point of the real kernel is speed: its tiles stay in the fast memory of a GPU. In plain PyTorch
only the other half of the idea remains, memory that grows with the length instead of its square.
Use :func:`glassformer.functional.attend` for work.

Axes as in :mod:`glassformer.functional.attention`, with queries grouped by the key/value head that
they share: (B, K, G, T, E), where G = H / K.

Book: evolution
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.errors import ShapeError
from glassformer.functional._checks import check_heads, check_mask, check_values

__all__ = ["flash_attend"]


def flash_attend(
    q: Float[Tensor, "batch n_heads q_len d_head"],
    k: Float[Tensor, "batch n_kv_heads k_len d_head"],
    v: Float[Tensor, "batch n_kv_heads k_len d_value"],
    *,
    mask: Bool[Tensor, "*broadcast q_or_one k_or_one"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    block: int = 64,
) -> Float[Tensor, "batch n_heads q_len d_value"]:
    """What :func:`attend` computes, tile by tile, forward and backward.

    Softmax and sums run in float32 (float64 for float64). Equal to the explicit path within 1e-5
    in float32; in half precision the results differ by one rounding of the output, for the explicit
    path rounds its weights too. A full (T, S) mask is as large as the weights would be: give
    padding as (B, 1, 1, S) and causality as the flag.

    Args:
        q, k, v, mask, is_causal, scale: as in :func:`attend`.
        block: queries, and keys, of a tile.

    Raises:
        MaskError, ShapeError: as in :func:`attend`, or a ``block`` below 1.

    Source: Milakov & Gimelshein 2018, algorithm 3 (online softmax); Dao et al. 2022, algorithm 1;
    Dao 2023, algorithms 1 and 2 (queries outside, backward from the logsumexp). Book: evolution
    """
    check_heads(q, k)
    check_values(k, v)
    if mask is not None:
        check_mask(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    if block < 1:
        raise ShapeError(f"block={block} is no size of a tile; give at least 1, such as 64")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast(q.device.type, enabled=False):  # the tiles keep the dtype they are given
        return _Flash.apply(q, k, v, mask, is_causal, scale, block)  # type: ignore[no-untyped-call]


class _Tiles:
    """Scores of one tile at a time, with hidden ones at -inf."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float,
        block: int,
    ) -> None:
        self.q, self.k, self.scale, self.block = q, k, scale, block
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.mask = None if mask is None else _grouped(mask, k.shape[1])
        self.is_causal = is_causal
        self.offset = k.shape[2] - q.shape[3]  # the last query stands on the last key

    def rows(self) -> Iterator[slice]:
        """Tiles of queries."""
        yield from _slices(self.q.shape[3], self.block)

    def columns(self, rows: slice) -> Iterator[slice]:
        """Tiles of keys that some query of ``rows`` may see: none lies above the diagonal."""
        n_keys = self.k.shape[2]
        if self.is_causal:
            n_keys = max(0, min(n_keys, rows.stop + self.offset))
        yield from _slices(n_keys, self.block)

    def query(self, rows: slice) -> Tensor:
        return self.q[:, :, :, rows].to(self.dtype)

    def key(self, columns: slice) -> Tensor:
        return self.k[:, :, None, columns].to(self.dtype)

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """(B, K, G, rows, columns)"""
        scores = self.query(rows) @ self.key(columns).mT * self.scale
        if self.mask is not None:
            scores = scores.masked_fill(~_cut(self.mask, rows, columns), -torch.inf)
        if self.is_causal and columns.stop - 1 > rows.start + self.offset:
            query = torch.arange(rows.start, rows.stop, device=scores.device)[:, None]
            key = torch.arange(columns.start, columns.stop, device=scores.device)
            scores = scores.masked_fill(key > query + self.offset, -torch.inf)
        return scores


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float,
        block: int,
    ) -> Tensor:
        tiles = _Tiles(q.unflatten(1, (k.shape[1], -1)), k, mask, is_causal, scale, block)
        out = q.new_empty(*tiles.q.shape[:4], v.shape[-1])
        logsumexp = q.new_empty(tiles.q.shape[:4], dtype=tiles.dtype)
        for rows in tiles.rows():
            out[:, :, :, rows], logsumexp[:, :, :, rows] = _online_softmax(tiles, v, rows)
        ctx.save_for_backward(q, k, v, mask, out, logsumexp)
        ctx.options = (is_causal, scale, block)
        return out.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, logsumexp = ctx.saved_tensors
        is_causal, scale, block = ctx.options
        tiles = _Tiles(q.unflatten(1, (k.shape[1], -1)), k, mask, is_causal, scale, block)
        grad = grad.unflatten(1, (k.shape[1], -1))
        with torch.autocast(q.device.type, enabled=False):
            dq, dk, dv = _gradients(tiles, v, grad, out, logsumexp)
        return dq.flatten(1, 2).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def _gradients(
    tiles: _Tiles, v: Tensor, grad: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; the weights of each tile are computed once more."""
    dq, dk, dv = (torch.zeros_like(x, dtype=tiles.dtype) for x in (tiles.q, tiles.k, v))
    for rows in tiles.rows():
        d_out = grad[:, :, :, rows].to(tiles.dtype)
        # what the softmax takes off every score's gradient: (gradient of out) . out, per query
        common = (d_out * out[:, :, :, rows]).sum(dim=-1, keepdim=True)
        for columns in tiles.columns(rows):
            weights = (tiles.scores(rows, columns) - logsumexp[:, :, :, rows, None]).exp()
            dv[:, :, columns] += (weights.mT @ d_out).sum(dim=2)
            d_weights = d_out @ v[:, :, None, columns].to(tiles.dtype).mT
            d_scores = weights * (d_weights - common) * tiles.scale
            dq[:, :, :, rows] += d_scores @ tiles.key(columns)
            dk[:, :, columns] += (d_scores.mT @ tiles.query(rows)).sum(dim=2)
    return dq, dk, dv


def _online_softmax(tiles: _Tiles, v: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """Outputs of one tile of queries and the logsumexp of their scores, over all keys in turn.

    When a tile brings a larger maximum, what was summed so far is scaled down to it. A query that
    sees nothing keeps zeros everywhere.
    """
    shape = (*tiles.q.shape[:3], rows.stop - rows.start, 1)
    largest = v.new_full(shape, torch.finfo(tiles.dtype).min, dtype=tiles.dtype)
    total = torch.zeros_like(largest)
    summed = largest.new_zeros(*shape[:4], v.shape[-1])
    for columns in tiles.columns(rows):
        scores = tiles.scores(rows, columns)
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        weights = (scores - new).exp()  # -inf gives exactly 0
        shrink = (largest - new).exp()
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        summed = summed * shrink + weights @ v[:, :, None, columns].to(tiles.dtype)
        largest = new
    total = total.clamp(min=1.0)  # the largest score adds exp(0), so only a blind row has less
    return (summed / total).to(v.dtype), (largest + total.log()).squeeze(-1)


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _grouped(mask: Tensor, n_kv_heads: int) -> Tensor:
    """A mask over (B, H, T, S) as one over (B, K, G, T, S), axes of size 1 kept."""
    if mask.ndim == 2:
        return mask[None, None, None]
    if mask.shape[1] == 1:
        return mask.unsqueeze(1)
    return mask.unflatten(1, (n_kv_heads, -1))


def _cut(mask: Tensor, rows: slice, columns: slice) -> Tensor:
    """The part of a mask over one tile; an axis that all share has no parts."""
    mask = mask if mask.shape[-2] == 1 else mask[..., rows, :]
    return mask if mask.shape[-1] == 1 else mask[..., columns]
