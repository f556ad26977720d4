"""The encoder: every token sees every other.

Book: assembling
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import EncoderConfig
from glassformer.errors import ShapeError
from glassformer.models._parts import (
    bidirectional_pass,
    check_tokens,
    make_embedding,
    make_norm,
    make_rotary,
    make_stack,
)
from glassformer.nn import init_weights

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """Tokens in, one vector per token out.

    Args:
        config: sizes and choices.

    Source: Vaswani et al. 2017, section 3.1; Devlin et al. 2019. Book: assembling
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(
            config,
            config.vocab_size,
            n_segments=config.n_segments,
            norm=make_norm(config) if config.embedding_norm else None,
        )
        self.rotary = make_rotary(config)
        self.encoder = make_stack(config, config.n_layers)
        init_weights(self)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        token_mask: Bool[Tensor, "batch time"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """A vector for each token; those at padded places mean nothing.

        Args:
            tokens: ids.
            token_mask: True where a token is real.
            segments: segment ids, zeros when ``None``.

        Raises:
            ShapeError: wrong rank or dtype, more tokens than ``max_len``, or segments that the
                model has no table for.
        """
        check_tokens(tokens, self.config)
        if segments is not None and not self.config.n_segments:
            raise ShapeError(
                "this model has no segments; leave them out, or configure it with n_segments=2"
            )
        step = bidirectional_pass(tokens, token_mask)
        x: Tensor = self.encoder(
            self.embedding(tokens, step.positions, segments),
            mask=step.mask,
            rotary=None if self.rotary is None else self.rotary(step.positions),
        )
        return x
