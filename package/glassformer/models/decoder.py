"""The decoder-only language model: GPT-2, LLaMA and all in between.

Book: assembling
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import DecoderConfig
from glassformer.kv_cache import KVCache
from glassformer.models._parts import (
    cache_length,
    causal_pass,
    check_tokens,
    make_cache,
    make_embedding,
    make_rotary,
    make_stack,
)
from glassformer.nn import init_weights

__all__ = ["Decoder"]


class Decoder(nn.Module):
    """Tokens in, logits of the next token out, at every position.

    Args:
        config: sizes and choices.

    Source: Radford et al. 2019; Touvron et al. 2023 for the rotary, RMSNorm, SwiGLU variant.
    Book: assembling
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config, config.vocab_size)
        self.rotary = make_rotary(config)
        self.decoder = make_stack(config, config.n_layers, causal=True)
        self.lm_head = (
            None
            if config.tie_embeddings
            else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None
        init_weights(self)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch time vocab_size"]:
        """Logits of the token that follows each position.

        Args:
            tokens: ids.
            token_mask: True where a token is real; with a cache it covers the cached tokens too.
                Padding may stand on either side: positions count real tokens only.
            cache: keys and values of earlier tokens; ``tokens`` continue them and are added.

        Raises:
            ShapeError: wrong rank or dtype, or more tokens than ``max_len``.
            CacheError: the cache is full or of another batch.
        """
        return self.head(self.hidden(tokens, token_mask=token_mask, cache=cache))

    def hidden(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream before the output head. Arguments are those of :meth:`forward`."""
        check_tokens(tokens, self.config, cached=cache_length(cache))
        step = causal_pass(tokens, token_mask, cache, self.config.sliding_window)
        x: Tensor = self.decoder(
            self.embedding(tokens, step.positions),
            mask=step.mask,
            is_causal=step.is_causal,
            rotary=None if self.rotary is None else self.rotary(step.positions),
            cache=cache,
        )
        return x

    def head(self, hidden: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab_size"]:
        """Logits of a hidden state, by the embedding matrix itself when the two are tied."""
        return F.linear(hidden, self.head_weight, self.head_bias)

    @property
    def head_weight(self) -> Float[Tensor, "vocab_size d_model"]:
        """The matrix of the output head; tied, it is ``embedding.tokens.weight`` and no copy."""
        return self.embedding.tokens.weight if self.lm_head is None else self.lm_head.weight

    def new_cache(
        self, *, static: bool = False, batch_size: int | None = None, max_len: int | None = None
    ) -> KVCache:
        """An empty cache that fits this model.

        It grows with the tokens; with a ``sliding_window`` in the config only up to the window
        (:class:`glassformer.kv_cache.SlidingWindowCache`). Where more than one token is taken back
        at a time, make a :class:`glassformer.kv_cache.GrowingCache`, which fits such models too.

        Args:
            static: buffers of a fixed size (:class:`glassformer.kv_cache.StaticCache`).
            batch_size: rows of a static cache.
            max_len: tokens of a static cache; the model's ``max_len`` when ``None``.

        Raises:
            ShapeError: a static cache without ``batch_size``.
        """
        return make_cache(
            self.config, self.head_weight, static=static, batch_size=batch_size, max_len=max_len
        )
