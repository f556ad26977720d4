"""How surprised is the model? Every token scored exactly once, every token weighing the same.

Book: training
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from glassformer.data.batches import TokenBudgetBatches, pad_batch
from glassformer.data.windows import windows
from glassformer.errors import DataError
from glassformer.evaluation.mode import device_of, evaluating

__all__ = ["Score", "evaluate_nll", "evaluate_pairs", "evaluate_sequences"]


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
        """``exp(nll)``: among how many equally likely tokens the model seems to choose.

        Infinity where that is too large a number, from 710 nats on.
        """
        return float(torch.tensor(self.nll, dtype=torch.float64).exp())

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
        DataError: fewer than 2 ids, not ``1 <= stride <= window``, or ``batch_size`` below 1.

    Book: training
    """
    if batch_size < 1:
        raise DataError(f"batch_size={batch_size} must be at least 1; it changes no figure")
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

    def logits(batch: Sequence[int], device: torch.device) -> Tensor:
        inputs, mask = pad_batch([sequences[i][:-1] for i in batch], pad_id)
        return model(inputs.to(device), token_mask=mask.to(device))

    lengths = [len(sequence) for sequence in sequences]
    return Score(_token_nlls(model, logits, sequences, lengths, pad_id, max_tokens), n_chars)


def evaluate_pairs(
    model: nn.Module,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    pad_id: int,
    max_tokens: int = 4096,
    n_chars: int | None = None,
) -> Score:
    """Score the target of each pair, given its source: the dev loss of a translator.

    As in :func:`evaluate_sequences` a target of n ids has n - 1 that are scored, so give it a bos
    first and an eos last; padding of either side is masked, and ``max_tokens`` changes no figure.

    Args:
        model: an encoder-decoder: maps source, target, ``source_mask`` and ``target_mask`` to
            logits (batch, time, vocab).
        pairs: source ids and target ids of each.
        pad_id: fills the batches.
        max_tokens: tokens of a batch on its longer side, padding included.
        n_chars: characters of all targets, for :attr:`Score.bits_per_character`.

    Raises:
        DataError: no pairs, an empty source, or a target of fewer than 2 ids.

    Book: translation
    """
    for index, (source, _) in enumerate(pairs):
        if not len(source):
            raise DataError(f"source {index} is empty; drop the pair, or encode it with eos=True")

    def logits(batch: Sequence[int], device: torch.device) -> Tensor:
        sources, source_mask = pad_batch([pairs[i][0] for i in batch], pad_id)
        targets, target_mask = pad_batch([pairs[i][1][:-1] for i in batch], pad_id)
        return model(
            sources.to(device),
            targets.to(device),
            source_mask=source_mask.to(device),
            target_mask=target_mask.to(device),
        )

    targets = [target for _, target in pairs]
    lengths = [max(len(source) + 1, len(target)) for source, target in pairs]
    return Score(_token_nlls(model, logits, targets, lengths, pad_id, max_tokens), n_chars)


def _token_nlls(
    model: nn.Module,
    logits: Callable[[Sequence[int], torch.device], Tensor],
    sequences: Sequence[Sequence[int]],
    lengths: Sequence[int],
    pad_id: int,
    max_tokens: int,
) -> Float64[Tensor, " n_tokens"]:
    """Surprise at all ids but the first of each sequence, in their order, whatever the batches."""
    if not sequences:
        raise DataError("there is nothing to score; give at least one text, or one pair of them")
    for index, sequence in enumerate(sequences):
        if len(sequence) < 2:
            raise DataError(
                f"sequence {index} has {len(sequence)} ids and nothing to predict; drop it, or "
                "encode it with bos=True, eos=True"
            )
    device = device_of(model)
    scored: dict[int, Tensor] = {}
    with evaluating(model):
        for batch in TokenBudgetBatches([length - 1 for length in lengths], max_tokens).epoch(0):
            targets, _ = pad_batch([sequences[i][1:] for i in batch], pad_id)
            nll = _token_nll(logits(batch, device), targets.to(device))
            for i, row in zip(batch, nll, strict=True):
                scored[i] = row[: len(sequences[i]) - 1]
    return torch.cat([scored[i] for i in range(len(sequences))])


def _token_nll(
    logits: Float[Tensor, "batch time vocab"], targets: Int64[Tensor, "batch time"]
) -> Float64[Tensor, "batch time"]:
    nll = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    return nll.cpu().double()
