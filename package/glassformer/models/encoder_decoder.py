"""The encoder-decoder: reads a source, writes a target.

Book: cross_attention
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import EncoderDecoderConfig
from glassformer.functional.masking import padding_mask
from glassformer.kv_cache import CrossCache, KVCache
from glassformer.models._parts import (
    bidirectional_pass,
    cache_length,
    causal_pass,
    check_token_mask,
    check_tokens,
    make_cache,
    make_embedding,
    make_rotary,
    make_stack,
)
from glassformer.nn import InputEmbedding, init_weights

__all__ = ["EncoderDecoder"]


class EncoderDecoder(nn.Module):
    """The Transformer of the paper: an encoder, and a decoder that also listens to its output.

    Args:
        config: sizes and choices. Source and target share one embedding unless
            ``source_vocab_size`` is given.

    Source: Vaswani et al. 2017, figure 1. Book: cross_attention
    """

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config, config.vocab_size)
        self.own_source_embedding = (
            None
            if config.source_vocab_size is None
            else make_embedding(config, config.source_vocab_size)
        )
        self.rotary = make_rotary(config)
        self.encoder = make_stack(config, config.encoder_layers)
        self.decoder = make_stack(config, config.n_layers, causal=True, cross=True)
        self.lm_head = (
            None
            if config.tie_embeddings
            else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None
        init_weights(self)

    @property
    def source_embedding(self) -> InputEmbedding:
        """The embedding of source tokens; shared, it is ``embedding`` itself."""
        return self.embedding if self.own_source_embedding is None else self.own_source_embedding

    @property
    def head_weight(self) -> Float[Tensor, "vocab_size d_model"]:
        """The matrix of the output head; tied, it is ``embedding.tokens.weight`` and no copy."""
        return self.embedding.tokens.weight if self.lm_head is None else self.lm_head.weight

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch time"],
        *,
        source_mask: Bool[Tensor, "batch source"] | None = None,
        target_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time vocab_size"]:
        """Logits of the target token that follows each target position, for training.

        Args:
            source, target: ids.
            source_mask, target_mask: True where a token is real.

        Raises:
            ShapeError: wrong rank or dtype, or more tokens than ``max_len``.
        """
        memory = self.encode(source, token_mask=source_mask)
        hidden = self.decode(target, memory, memory_mask=source_mask, token_mask=target_mask)
        return self.head(hidden)

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        *,
        token_mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: one vector per source token."""
        check_tokens(source, self.config, name="source")
        step = bidirectional_pass(source, token_mask)
        x: Tensor = self.encoder(
            self.source_embedding(source, step.positions),
            mask=step.mask,
            rotary=None if self.rotary is None else self.rotary(step.positions),
        )
        return x

    def decode(
        self,
        target: Int[Tensor, "batch time"],
        memory: Float[Tensor, "batch source d_model"],
        *,
        memory_mask: Bool[Tensor, "batch source"] | None = None,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
        cross_cache: CrossCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """The decoder's stream before the head.

        Args:
            target: ids; with a cache, only the new ones.
            memory: output of :meth:`encode`.
            memory_mask: True where a source token is real. It never mixes with the target's.
            token_mask: True where a target token is real, cached ones included.
            cache: keys and values of earlier target tokens.
            cross_cache: the projected memory, made at the first call and used at the next ones.
        """
        check_tokens(target, self.config, cached=cache_length(cache), name="target")
        if memory_mask is not None:
            check_token_mask(memory_mask, memory.shape[0], (memory.shape[1],))
        step = causal_pass(target, token_mask, cache, self.config.sliding_window)
        x: Tensor = self.decoder(
            self.embedding(target, step.positions),
            mask=step.mask,
            is_causal=step.is_causal,
            rotary=None if self.rotary is None else self.rotary(step.positions),
            cache=cache,
            memory=memory,
            memory_mask=None if memory_mask is None else padding_mask(memory_mask),
            cross_cache=cross_cache,
        )
        return x

    def head(self, hidden: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab_size"]:
        """Logits of a hidden state, by the embedding matrix itself when the two are tied."""
        return F.linear(hidden, self.head_weight, self.head_bias)

    def new_cache(
        self, *, static: bool = False, batch_size: int | None = None, max_len: int | None = None
    ) -> KVCache:
        """An empty cache for the target tokens. Arguments are those of ``Decoder.new_cache``."""
        return make_cache(
            self.config, self.head_weight, static=static, batch_size=batch_size, max_len=max_len
        )

    def new_cross_cache(self) -> CrossCache:
        """An empty cache for the projected source."""
        return CrossCache(self.config.n_layers)
