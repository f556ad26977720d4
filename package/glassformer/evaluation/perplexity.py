"""How surprised is the model? Every token scored exactly once, every token weighing the same.

Book: training
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from glassformer.data.batches import TokenBudgetBatches, pad_batch
from glassformer.data.windows import windows
from glassformer.errors import DataError
from glassformer.evaluation.mode import device_of, evaluating

__all__ = ["Score", "evaluate_nll", "evaluate_sequences"]


@dataclass(frozen=True, eq=False)
class Score:
    """The surprise of a model at a text, in nats, with the tokens it was summed over.

    Keep the total and the count: means of batches, or perplexities, must never be averaged, as
    batches differ in size.

    Book: training
    """

    token_nll: Float64[Tensor, " n_tokens"]
    """Surprise at each scored token, in the order of the text."""
    n_chars: int | None = None
    """Characters of the text, where known; they make tokenizers comparable."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens scored."""
        return len(self.token_nll)

    @property
    def nll_total(self) -> float:
        """Sum over all tokens, in nats, added in float64."""
        return float(self.token_nll.sum())

    @property
    def nll(self) -> float:
        """Mean over all tokens, in nats per token."""
        return self.nll_total / self.n_tokens

    @property
    def perplexity(self) -> float:
        """``exp(nll)``: among how many equally likely tokens the model seems to choose."""
        return math.exp(self.nll)

    @property
    def bits_per_character(self) -> float:
        """The total in bits over the characters of the text, comparable between tokenizers.

        Raises:
            DataError: ``n_chars`` was not given.
        """
        if not self.n_chars:
            raise DataError(f"n_chars={self.n_chars}; give the evaluation n_chars=len(text)")
        return self.nll_total / math.log(2) / self.n_chars


def evaluate_nll(
    model: nn.Module,
    ids: Sequence[int] | Tensor,
    *,
    window: int,
    stride: int | None = None,
    batch_size: int = 8,
    n_chars: int | None = None,
) -> Score:
    """Score a long text through windows: each of its N - 1 targets once, for any stride.

    A token is scored in the first window that has it as a target. With ``stride`` below
    ``window`` it then sees at least ``window - stride`` tokens before it, which costs more passes
    and gives a lower, fairer figure than cutting the text into blocks (``stride=None``).

    Args:
        model: maps tokens (batch, time) to logits (batch, time, vocab).
        ids: the token ids of the text.
        window: inputs per window, at most the model's ``max_len``.
        stride: steps between windows; ``window`` if not given.
        batch_size: windows per pass; it changes no figure.
        n_chars: characters of the text, for :attr:`Score.bits_per_character`.

    Raises:
        DataError: fewer than 2 ids, or not ``1 <= stride <= window``.

    Book: training
    """
    views = windows(ids, window, window if stride is None else stride)
    device = device_of(model)
    scored: list[Tensor] = []
    with evaluating(model):
        for first in range(0, len(views), batch_size):
            indices = range(first, min(first + batch_size, len(views)))
            inputs, targets = views.batch(indices)
            nll = _token_nll(model(inputs.to(device)), targets.to(device))
            scored += [row[-views.n_new(i) :] for i, row in zip(indices, nll, strict=True)]
    return Score(torch.cat(scored), n_chars)


def evaluate_sequences(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    pad_id: int,
    max_tokens: int = 4096,
    n_chars: int | None = None,
) -> Score:
    """Score separate texts (verses, sentences), each from its own beginning.

    The texts are padded into batches of similar length; padding is masked and never scored, so
    ``max_tokens`` changes no figure. A text of n ids has n - 1 targets: give each a bos first if
    its first word is to count.

    Args:
        model: maps tokens (batch, time) and ``token_mask`` to logits (batch, time, vocab).
        sequences: the token ids of each text.
        pad_id: fills the batches.
        max_tokens: tokens of a batch, padding included.
        n_chars: characters of all texts, for :attr:`Score.bits_per_character`.

    Raises:
        DataError: no texts, or one of fewer than 2 ids.

    Book: training
    """
    for index, sequence in enumerate(sequences):
        if len(sequence) < 2:
            raise DataError(
                f"sequence {index} has {len(sequence)} ids and nothing to predict; drop it, or "
                "encode it with bos=True, eos=True"
            )
    lengths = [len(sequence) - 1 for sequence in sequences]
    batches = TokenBudgetBatches(lengths, max_tokens).epoch(0)
    device = device_of(model)
    scored: dict[int, Tensor] = {}
    with evaluating(model):
        for batch in batches:
            inputs, mask = pad_batch([sequences[i][:-1] for i in batch], pad_id)
            targets, _ = pad_batch([sequences[i][1:] for i in batch], pad_id)
            logits = model(inputs.to(device), token_mask=mask.to(device))
            nll = _token_nll(logits, targets.to(device))
            scored |= {i: row[: lengths[i]] for i, row in zip(batch, nll, strict=True)}
    return Score(torch.cat([scored[i] for i in range(len(sequences))]), n_chars)


def _token_nll(
    logits: Float[Tensor, "batch time vocab"], targets: Int64[Tensor, "batch time"]
) -> Float64[Tensor, "batch time"]:
    nll = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    return nll.cpu().double()
