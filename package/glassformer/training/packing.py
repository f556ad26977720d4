"""Spend nothing on padding: only attention needs rows, all the rest takes tokens one by one.

Where sentences differ in length, a padded batch is mostly padding. Embedding, norms, projections,
feed-forward networks and the loss treat each token on its own, so they run on the real tokens
alone, one after the other: (1, N, D). For attention the tokens are spread over the rows of the
batch, and gathered again behind it.

Book: training
"""

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.functional.attention import attend
from glassformer.functional.masking import padding_mask
from glassformer.introspect._parts import refuse_prepared
from glassformer.models import Decoder, EncoderDecoder
from glassformer.models._parts import Pass, bidirectional_pass, causal_pass, check_tokens
from glassformer.nn import InputEmbedding, MultiHeadAttention, Stack

__all__ = ["Packing", "kernel_for", "packable", "packed_decoder", "packed_translator"]

_EAGER_BELOW = {torch.bfloat16: 256}
"""Keys, on a CPU. Measured forward and backward at 4096 tokens, with and without masks: at 16 keys
eager is 5 times as fast as the fused kernel, at 128 1.8 times, from 256 on it is slower. In
float32 the two are within a fifth of each other up to 64 keys, then the fused kernel wins."""


class Packing:
    """Where the real tokens of a padded batch stand.

    Args:
        mask: True where a token is real.

    Source: Zhai et al. 2023, section III. Book: training
    """

    def __init__(self, mask: Bool[Tensor, "batch time"]) -> None:
        self.shape = mask.shape
        self.places = mask.flatten().nonzero()[:, 0]
        """(N,): numbers of the real ones among all B * T places."""
        self.full = len(self.places) == mask.numel()

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...), or what broadcasts to it -> (1, N, ...): the real tokens, row after row."""
        x = x.expand(*self.shape, *x.shape[2:]).flatten(0, 1)
        return (x if self.full else x.index_select(0, self.places))[None]

    def spread(
        self, x: Float[Tensor, "1 n_heads n d_head"]
    ) -> Float[Tensor, "batch n_heads time d_head"]:
        """The tokens in their rows again, between zeros."""
        tokens = x[0].transpose(0, 1)  # (N, H, E), as the projections wrote them
        if not self.full:
            places = tokens.new_zeros(self.shape.numel(), *tokens.shape[1:])
            tokens = places.index_copy(0, self.places, tokens)
        return tokens.unflatten(0, self.shape).transpose(1, 2)

    def gather(
        self, x: Float[Tensor, "batch n_heads time d_head"]
    ) -> Float[Tensor, "1 n_heads n d_head"]:
        """The inverse of :meth:`spread`."""
        return self.pack(x.transpose(1, 2)).transpose(1, 2)


def kernel_for(length: int, dtype: torch.dtype, device: torch.device) -> Literal["eager", "fused"]:
    """Which path of :func:`glassformer.functional.attend` trains faster on ``length`` keys.

    The fused one, except at bfloat16 on a CPU, where it is slow until the matrix of weights
    outgrows the caches: up to 255 keys explicit weights are the faster ones.

    Book: training
    """
    eager = device.type == "cpu" and length < _EAGER_BELOW.get(dtype, 0)
    return "eager" if eager else "fused"


def packable(model: Decoder | EncoderDecoder) -> bool:
    """Whether the attention of a model can take its rows from a :class:`Packing`.

    It cannot where the stack itself lays out the bias of relative positions, nor where somebody
    looks at the weights.

    Raises:
        GlassformerError: the model is prepared for writing.

    Book: training
    """
    refuse_prepared(model)
    return not any(
        (isinstance(module, Stack) and module.relative is not None)
        or (isinstance(module, MultiHeadAttention) and module.eager)
        for module in model.modules()
    )


def packed_decoder(
    model: Decoder, tokens: Int[Tensor, "batch time"], packing: Packing | None
) -> Float[Tensor, "rows n d_model"]:
    """``packing.pack(model.hidden(tokens))``, computed without the other tokens.

    Args:
        model: one that is :func:`packable`.
        tokens: ids, padded on the right.
        packing: the real ones; ``None`` leaves the rows as they are and only chooses the kernel.

    Raises:
        ShapeError: as ``model.hidden``.

    Book: training
    """
    check_tokens(tokens, model.config)
    step = causal_pass(tokens, None, None, model.config.sliding_window)
    return _run(model, model.decoder, model.embedding, tokens, step, packing)


def packed_translator(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source"],
    target: Int[Tensor, "batch time"],
    *,
    source_mask: Bool[Tensor, "batch source"] | None,
    packings: tuple[Packing, Packing] | None,
) -> Float[Tensor, "rows n d_model"]:
    """``model.decode(target, model.encode(source))``, packed and without the other tokens.

    Args:
        model: one that is :func:`packable`.
        source: ids, padded on any side.
        target: ids, padded on the right.
        source_mask: True where a source token is real.
        packings: the real ones of source and target; ``None`` leaves the rows as they are.

    Raises:
        ShapeError: as ``model.encode`` and ``model.decode``.

    Book: training
    """
    check_tokens(source, model.config, name="source")
    check_tokens(target, model.config, name="target")
    of_source, of_target = (None, None) if packings is None else packings
    listen = bidirectional_pass(source, source_mask)
    memory = _run(model, model.encoder, model.source_embedding, source, listen, of_source)
    step = causal_pass(target, None, None, model.config.sliding_window)
    return _run(
        model,
        model.decoder,
        model.embedding,
        target,
        step,
        of_target,
        memory=memory,
        memory_mask=None if source_mask is None else padding_mask(source_mask),
        memory_kernel=partial(_attend, queries=of_target, keys=of_source),
    )


def _run(
    model: Decoder | EncoderDecoder,
    stack: Stack,
    embedding: InputEmbedding,
    tokens: Tensor,
    step: Pass,
    packing: Packing | None,
    **memory: Any,
) -> Tensor:
    positions = step.positions
    if packing is not None:
        tokens, positions = packing.pack(tokens), packing.pack(positions)
    x: Tensor = stack(
        embedding(tokens, positions),
        mask=step.mask,
        is_causal=step.is_causal,
        rotary=None if model.rotary is None else model.rotary(positions),
        kernel=partial(_attend, queries=packing, keys=packing),
        **memory,
    )
    return x


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    queries: Packing | None,
    keys: Packing | None,
    **options: Any,
) -> Tensor:
    if queries is not None and keys is not None:
        q, k, v = queries.spread(q), keys.spread(k), keys.spread(v)
    eager = kernel_for(k.shape[2], q.dtype, q.device) == "eager"
    context = attend(q, k, v, eager=eager, **options)
    return context if queries is None else queries.gather(context)
