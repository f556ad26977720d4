"""Blocks: attention and feed-forward around a residual stream, and stacks of them.

Book: feed_forward
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.config import NormPosition
from glassformer.errors import CacheError, ConfigError, ShapeError
from glassformer.functional.attention import attend
from glassformer.kv_cache import CrossCache, CrossLayerCache, KVCache, LayerCache
from glassformer.nn.multi_head import MultiHeadAttention
from glassformer.nn.relative import RelativePositionBias

__all__ = ["Block", "Stack"]


class Block(nn.Module):
    """One layer: self-attention, perhaps cross-attention, feed-forward, each with a residual.

    Pre-norm computes ``x + f(norm(x))``, post-norm ``norm(x + f(x))``; the output of every
    sublayer is dropped out before it is added.

    Args:
        self_attn: attention of the block to its own input.
        feed_forward: the position-wise network, one or a mixture of experts.
        make_norm: makes one norm of the model's width.
        cross_attn: attention to an encoder's output; ``None`` for none.
        norm_position: ``pre`` or ``post``.
        dropout: share of every sublayer's output dropped in training.

    Raises:
        ConfigError: an unknown ``norm_position``.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020 for pre-norm. Book: feed_forward
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        make_norm: Callable[[], nn.Module],
        cross_attn: MultiHeadAttention | None = None,
        norm_position: NormPosition = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm_position not in get_args(NormPosition):
            raise ConfigError(f"norm_position={norm_position!r} is unknown; it may be pre or post")
        self.self_attn = self_attn
        self.self_attn_norm = make_norm()
        self.cross_attn = cross_attn
        self.cross_attn_norm = make_norm() if cross_attn is not None else None
        self.feed_forward = feed_forward
        self.feed_forward_norm = make_norm()
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = norm_position == "pre"

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cross_cache: CrossLayerCache | None = None,
        kernel: Callable[..., Tensor] = attend,
        memory_kernel: Callable[..., Tensor] = attend,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream after this layer. Arguments are those of :class:`Stack`, for one layer.

        Raises:
            ShapeError: a block that listens to a memory got none.
        """

        listen_to_self = partial(
            self.self_attn,
            mask=mask,
            bias=bias,
            is_causal=is_causal,
            rotary=rotary,
            cache=cache,
            kernel=kernel,
        )
        x = self._residual(x, listen_to_self, self.self_attn_norm)
        if self.cross_attn is not None and self.cross_attn_norm is not None:
            if memory is None and cross_cache is None:
                raise ShapeError(
                    "this block listens to an encoder, so it needs its output: give memory"
                )
            listen_to_memory = partial(
                self.cross_attn,
                mask=memory_mask,
                memory=memory,
                cross_cache=cross_cache,
                kernel=memory_kernel,
            )
            x = self._residual(x, listen_to_memory, self.cross_attn_norm)
        return self._residual(x, self.feed_forward, self.feed_forward_norm)

    def _residual(self, x: Tensor, f: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        if self.pre_norm:
            return x + self.dropout(f(norm(x)))
        return norm(x + self.dropout(f(x)))


class Stack(nn.Module):
    """Blocks one after the other, and the closing norm that a pre-norm stack needs.

    Args:
        blocks: the layers.
        norm: the closing norm; ``None`` after post-norm blocks, which end in one.
        relative: bias of relative positions, the same for the self-attention of all blocks.
        layer_drop: probability that training skips a block.

    ``checkpoint_blocks`` is a switch for training: blocks then forget their activations and
    compute them again in the backward pass (Chen et al. 2016).

    Source: Vaswani et al. 2017, figure 1; Fan et al. 2020, section 3.2 for ``layer_drop``.
    Book: feed_forward
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        norm: nn.Module | None = None,
        *,
        relative: RelativePositionBias | None = None,
        layer_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.relative = relative
        self.layer_drop = layer_drop
        self.checkpoint_blocks = False

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cross_cache: CrossCache | None = None,
        kernel: Callable[..., Tensor] = attend,
        memory_kernel: Callable[..., Tensor] = attend,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream after all layers.

        Args:
            x: input vectors.
            mask, is_causal, rotary: as in :class:`MultiHeadAttention`, the same for all layers.
            cache: one layer cache per block; counted up once, at the end.
            memory: encoder output for cross-attention.
            memory_mask: True where ``memory`` may be listened to.
            cross_cache: keeps the projected ``memory``; once filled, ``memory`` is not read.
            kernel, memory_kernel: compute self-attention and cross-attention, as in
                :class:`MultiHeadAttention`.

        Raises:
            CacheError: a cache made for another number of layers, or together with
                ``checkpoint_blocks`` or ``layer_drop`` in training.
            ShapeError: blocks that listen to a memory got none.
        """
        for kept in (cache, cross_cache):
            if kept is not None and len(kept.layers) != len(self.blocks):
                raise CacheError(
                    f"a cache of {len(kept.layers)} layers does not fit {len(self.blocks)} blocks; "
                    "make one with this model's new_cache() or new_cross_cache()"
                )
        checkpointing = self.checkpoint_blocks and self.training and torch.is_grad_enabled()
        if checkpointing and (cache is not None or cross_cache is not None):
            raise CacheError(
                "a checkpointed block runs twice and would fill the cache twice; train without a "
                "cache, or set checkpoint_blocks = False"
            )
        layer_drop = self.layer_drop if self.training else 0.0
        if layer_drop and (cache is not None or cross_cache is not None):
            raise CacheError(
                f"layer_drop={layer_drop} skips blocks in training, whose cache would then have "
                "gaps; train without a cache, or call model.eval() first"
            )
        bias = self._bias(x.shape[1], cache)
        for i, block in enumerate(self.blocks):
            if layer_drop and float(torch.rand(())) < layer_drop:
                continue
            keywords: dict[str, Any] = {
                "mask": mask,
                "bias": bias,
                "is_causal": is_causal,
                "rotary": rotary,
                "cache": None if cache is None else cache.layers[i],
                "memory": memory,
                "memory_mask": memory_mask,
                "cross_cache": None if cross_cache is None else cross_cache.layers[i],
                "kernel": kernel,
                "memory_kernel": memory_kernel,
            }
            if checkpointing:
                x = checkpoint(block, x, use_reentrant=False, **keywords)
            else:
                x = block(x, **keywords)
        if cache is not None:
            cache.advance(x.shape[1])
        return x if self.norm is None else self.norm(x)

    def _bias(self, q_len: int, cache: KVCache | None) -> Tensor | None:
        if self.relative is None:
            return None
        if cache is None:
            return self.relative(q_len, q_len)
        offset = cache.position - cache.first_key
        return self.relative(q_len, cache.k_len(q_len), offset=offset)
