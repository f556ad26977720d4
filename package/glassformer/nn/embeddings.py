"""From token ids to vectors that know their place.

Book: embeddings
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config import PositionKind
from glassformer.errors import ConfigError
from glassformer.functional.positions import sinusoidal_positions

__all__ = ["InputEmbedding", "TokenEmbedding"]


class TokenEmbedding(nn.Module):
    """A table with one row per token id.

    Args:
        vocab_size: number of rows.
        d_model: width of a row.
        pad_id: id whose row is zero at the start, and gets no gradient when it is looked up; an
            output head that shares the table still trains it. ``None`` for none.

    Raises:
        ConfigError: ``pad_id`` is no row. A tokenizer without a padding piece reports -1, which
            plain indexing would take as the last row.

    Book: embeddings
    """

    def __init__(self, vocab_size: int, d_model: int, *, pad_id: int | None = None) -> None:
        super().__init__()
        if pad_id is not None and not 0 <= pad_id < vocab_size:
            raise ConfigError(
                f"pad_id={pad_id} is no row of a table of {vocab_size}; give an id from 0 to "
                f"{vocab_size - 1}, or None for no padding id"
            )
        self.pad_id = pad_id
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)
        self.reset_pad()

    @torch.no_grad()
    def reset_pad(self) -> None:
        """Set the padding row to zero again after an initialisation."""
        if self.pad_id is not None:
            self.weight[self.pad_id].zero_()

    def forward(self, tokens: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead d_model"]:
        """The row of each id."""
        return F.embedding(tokens, self.weight, self.pad_id)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, pad_id={self.pad_id}"


class InputEmbedding(nn.Module):
    """Token vectors plus position vectors (plus segment vectors), then norm and dropout.

    Args:
        tokens: the token table, perhaps shared with the output head.
        max_len: rows of the learned position table.
        positions: ``sinusoidal`` and ``learned`` are added here; ``rotary`` acts inside attention.
        n_segments: rows of the segment table; 0 for none.
        norm: applied to the sum, as in BERT.
        dropout: share of values dropped in training.

    With sinusoids the token vectors are first multiplied by sqrt(d_model).

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; Devlin et al. 2019, figure 2 for segments.
    Book: embeddings
    """

    def __init__(
        self,
        tokens: TokenEmbedding,
        *,
        max_len: int,
        positions: PositionKind,
        n_segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        d_model = tokens.weight.shape[1]
        self.tokens = tokens
        self.sinusoidal = positions == "sinusoidal"
        self.scale = d_model**0.5 if self.sinusoidal else 1.0
        self.positions = TokenEmbedding(max_len, d_model) if positions == "learned" else None
        self.segments = TokenEmbedding(n_segments, d_model) if n_segments else None
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        positions: Int[Tensor, "*lead time"],
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Vectors of the tokens at their positions, (T,) for all rows or (B, T) row by row."""
        x = self.tokens(tokens) * self.scale
        if self.sinusoidal:
            x = x + sinusoidal_positions(positions, x.shape[-1]).to(x.dtype)
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)
