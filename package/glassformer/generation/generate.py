"""Generate text: read the prompt or the source once, then write one token at a time.

Book: kv_cache
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from glassformer.evaluation.mode import evaluating
from glassformer.generation._session import Step, prepare, steps
from glassformer.generation.samplers import Choice, greedy
from glassformer.generation.step import Writer
from glassformer.kv_cache import KVCache

__all__ = ["Generation", "StreamStep", "generate", "stream"]


@dataclass(frozen=True, eq=False)
class Generation:
    """What was generated; the prompt is not part of it.

    One rule for the end of a row: the stop token belongs to it. It is in ``tokens``, it counts in
    ``lengths``, and its log-probability is in ``log_probs`` and ``scores``. What follows it is
    padding with log-probability 0.

    Book: kv_cache
    """

    tokens: Int64[Tensor, "batch new"]
    log_probs: Float32[Tensor, "batch new"]
    """Of each token under the model itself, before temperature, top-k or top-p."""
    lengths: Int64[Tensor, " batch"]
    """Number of tokens of each row up to and including the stop token."""
    stopped: Bool[Tensor, " batch"]
    """True where a row ended with a stop token, False where it met the limit."""

    @property
    def confidence(self) -> Float32[Tensor, "batch new"]:
        """Probability that the model gave to each token; 1 in the padding."""
        return self.log_probs.exp()

    @property
    def scores(self) -> Float32[Tensor, " batch"]:
        """Log-probability of each row: the sum over its generated tokens."""
        return self.log_probs.sum(dim=1)

    def to_lists(self) -> list[list[int]]:
        """The ids of each row without padding."""
        rows = zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]


class StreamStep(NamedTuple):
    """One token as it arrives, with the probability that the model gave to it.

    Book: kv_cache
    """

    token: int
    confidence: float


def generate(
    model: Writer,
    prompt: Int64[Tensor, "batch time"] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    bos_id: int | None = None,
    choose: Choice = greedy,
    stop_ids: Sequence[int] = (),
    pad_id: int | None = None,
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> Generation:
    """Write until a stop token or ``max_new_tokens``: continue prompts, or answer sources.

    A decoder continues each prompt. Prompts of unequal length come as lists; they are padded on
    the left and masked, so each row gets what it would get alone. An encoder-decoder reads each
    prompt as a source, padded on the right and encoded once, and begins with ``bos_id``, which is
    not part of the result. The loop ends when all rows have ended. The model runs in evaluation
    mode without gradients, and its training flags come back as they were.

    Args:
        model: a decoder or an encoder-decoder.
        prompt: token ids, a tensor of real tokens (batch, time) or one list per row.
        max_new_tokens: the most tokens to write in a row.
        bos_id: what an encoder-decoder begins with; a decoder has it in the prompt.
        choose: maps float32 logits (batch, vocab) and the text so far to ids (batch,).
        stop_ids: any of these ends a row.
        pad_id: fills ended rows; the model's own if not given, or 0.
        cache: an empty cache to use; by default the model makes one.
        use_cache: False reads everything again for each token: slow, and the same tokens.

    Raises:
        GenerationError: before anything is computed, on an empty prompt, ids outside the
            vocabulary, a text longer than the model or the cache holds, a cache in use, or a
            ``bos_id`` that is missing or has no place.

    Book: kv_cache
    """
    request = prepare(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        bos_id=bos_id,
        stop_ids=stop_ids,
        pad_id=pad_id,
        cache=cache,
        use_cache=use_cache,
    )
    with evaluating(model):
        written = [(step.tokens, step.log_probs) for step in steps(request, choose)]
    tokens, log_probs = (torch.stack(part, dim=1) for part in zip(*written, strict=True))
    is_stop = torch.isin(tokens, request.stop_ids)
    stopped = is_stop.any(dim=1)
    lengths = torch.where(stopped, is_stop.int().argmax(dim=1) + 1, tokens.shape[1])
    return Generation(tokens, log_probs, lengths, stopped)


def stream(
    model: Writer,
    prompt: Sequence[int] | Int64[Tensor, " time"],
    *,
    max_new_tokens: int,
    bos_id: int | None = None,
    choose: Choice = greedy,
    stop_ids: Sequence[int] = (),
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> Iterator[StreamStep]:
    """Continue one prompt, or answer one source, and hand out each token as soon as it is chosen.

    The tokens are those of :func:`generate`, the stop token included. Between two tokens the
    model is back in its own mode and gradients are on again if they were.

    Raises:
        GenerationError: as :func:`generate`, at the call and not at the first token.

    Book: kv_cache
    """
    request = prepare(
        model,
        [[int(token) for token in prompt]],
        max_new_tokens=max_new_tokens,
        bos_id=bos_id,
        stop_ids=stop_ids,
        cache=cache,
        use_cache=use_cache,
    )
    return _stream(model, steps(request, choose))


def _stream(model: Writer, written: Iterator[Step]) -> Iterator[StreamStep]:
    while True:
        with evaluating(model):
            step = next(written, None)
        if step is None:
            return
        yield StreamStep(int(step.tokens), float(step.log_probs.exp()))
