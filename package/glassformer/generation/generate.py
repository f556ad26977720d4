"""Generate text: read the prompt once, then one token at a time.

Book: kv_cache
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from glassformer.data.batches import pad_batch
from glassformer.errors import GenerationError
from glassformer.evaluation.mode import device_of, evaluating
from glassformer.generation.samplers import Choice, greedy
from glassformer.kv_cache import KVCache, StaticCache
from glassformer.models.decoder import Decoder

__all__ = ["Generation", "StreamStep", "decode_step", "generate", "prefill", "stream"]


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


def prefill(
    model: Decoder,
    tokens: Int64[Tensor, "batch time"],
    cache: KVCache | None,
    *,
    token_mask: Bool[Tensor, "batch source"] | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Read tokens into the cache and predict what follows the last one.

    Only the last position goes through the output layer, which saves most of its cost.
    ``token_mask`` covers the tokens already cached and the new ones.

    Book: kv_cache
    """
    hidden = model.hidden(tokens, token_mask=token_mask, cache=cache)
    logits: Tensor = model.head(hidden[:, -1])
    return logits


def decode_step(
    model: Decoder,
    token: Int64[Tensor, " batch"],
    cache: KVCache | None,
    *,
    token_mask: Bool[Tensor, "batch source"] | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Add one token per row to the cache and predict the next: a prefill of length 1.

    Book: kv_cache
    """
    return prefill(model, token[:, None], cache, token_mask=token_mask)


def generate(
    model: Decoder,
    prompt: Int64[Tensor, "batch time"] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    choose: Choice = greedy,
    stop_ids: Sequence[int] = (),
    pad_id: int | None = None,
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> Generation:
    """Continue each prompt until a stop token or ``max_new_tokens``.

    Prompts of unequal length come as lists; they are padded on the left and masked, so each row
    gets what it would get alone. The loop ends when all rows have ended. The model runs in
    evaluation mode without gradients, and its training flags come back as they were.

    Args:
        model: a decoder.
        prompt: token ids, a tensor of real tokens (batch, time) or one list per row.
        max_new_tokens: the most tokens to add to a row.
        choose: maps float32 logits (batch, vocab) to ids (batch,).
        stop_ids: any of these ends a row.
        pad_id: fills ended rows; the model's own if not given, or 0.
        cache: an empty cache to use; by default the model makes one.
        use_cache: False reads everything again for each token: slow, and the same tokens.

    Raises:
        GenerationError: before anything is computed, on an empty prompt, ids outside the
            vocabulary, a text longer than the model or the cache holds, or a cache in use.

    Book: kv_cache
    """
    request = _prepare(model, prompt, max_new_tokens, stop_ids, pad_id, cache, use_cache)
    with evaluating(model):
        steps = list(_steps(model, request, choose))
    tokens = torch.stack([token for token, _ in steps], dim=1)
    log_probs = torch.stack([log_prob for _, log_prob in steps], dim=1)
    is_stop = torch.isin(tokens, request.stop_ids)
    stopped = is_stop.any(dim=1)
    lengths = torch.where(stopped, is_stop.int().argmax(dim=1) + 1, tokens.shape[1])
    return Generation(tokens, log_probs, lengths, stopped)


def stream(
    model: Decoder,
    prompt: Sequence[int] | Int64[Tensor, " time"],
    *,
    max_new_tokens: int,
    choose: Choice = greedy,
    stop_ids: Sequence[int] = (),
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> Iterator[StreamStep]:
    """Continue one prompt and hand out each token as soon as it is chosen.

    The tokens are those of :func:`generate`, the stop token included. Between two tokens the
    model is back in its own mode and gradients are on again if they were.

    Raises:
        GenerationError: as :func:`generate`, at the call and not at the first token.

    Book: kv_cache
    """
    row = [int(token) for token in prompt]
    request = _prepare(model, [row], max_new_tokens, stop_ids, None, cache, use_cache)
    return _stream(model, _steps(model, request, choose))


def _stream(model: Decoder, steps: Iterator[tuple[Tensor, Tensor]]) -> Iterator[StreamStep]:
    while True:
        with evaluating(model):
            step = next(steps, None)
        if step is None:
            return
        token, log_prob = step
        yield StreamStep(int(token), float(log_prob.exp()))


class _Request(NamedTuple):
    """A checked request: what :func:`_steps` needs."""

    tokens: Tensor
    token_mask: Tensor | None
    max_new_tokens: int
    stop_ids: Tensor
    pad_id: int
    cache: KVCache | None


def _steps(
    model: Decoder, request: _Request, choose: Choice
) -> Iterator[tuple[Int64[Tensor, " batch"], Float32[Tensor, " batch"]]]:
    """Yield the ids (batch,) and log-probabilities (batch,) of one step after the other."""
    fed, token_mask, cache = request.tokens, request.token_mask, request.cache
    running = torch.ones(len(fed), dtype=torch.bool, device=fed.device)
    for _ in range(request.max_new_tokens):
        logits = prefill(model, fed, cache, token_mask=token_mask).float()
        chosen = choose(logits)
        log_probs = logits.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]
        chosen = chosen.where(running, request.pad_id)
        yield chosen, log_probs.where(running, 0.0)
        running = running & ~torch.isin(chosen, request.stop_ids)
        if len(request.stop_ids) and not running.any():
            return
        new = chosen[:, None]
        fed = new if cache is not None else torch.cat((fed, new), dim=1)
        if token_mask is not None:
            token_mask = torch.cat((token_mask, torch.ones_like(new, dtype=torch.bool)), dim=1)


def _prepare(
    model: Decoder,
    prompt: Tensor | Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    pad_id: int | None,
    cache: KVCache | None,
    use_cache: bool,
) -> _Request:
    if pad_id is None:
        pad_id = model.config.pad_id or 0
    tokens, token_mask = _as_batch(prompt, pad_id)
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or max(high, pad_id) >= model.config.vocab_size:
        raise GenerationError(
            f"ids from {low} to {high} and pad_id={pad_id} do not fit a vocabulary of "
            f"{model.config.vocab_size}; use the tokenizer that the model was trained with"
        )
    if cache is not None and not use_cache:
        raise GenerationError("a cache was given together with use_cache=False; drop one of them")
    if use_cache and cache is None:
        cache = model.new_cache()
    _check_room(model, tokens.shape[1], max_new_tokens, cache)
    device = device_of(model)
    return _Request(
        tokens.to(device),
        None if token_mask is None else token_mask.to(device),
        max_new_tokens,
        torch.tensor(list(stop_ids), dtype=torch.int64, device=device),
        pad_id,
        cache,
    )


def _as_batch(
    prompt: Tensor | Sequence[Sequence[int]], pad_id: int
) -> tuple[Tensor, Tensor | None]:
    """Tokens (batch, time) and their mask, or None where all tokens are real."""
    if isinstance(prompt, Tensor):
        if prompt.dim() != 2 or prompt.numel() == 0:
            raise GenerationError(
                f"prompt of shape {tuple(prompt.shape)} must be (batch, time) with at least one "
                "token; begin an empty prompt with bos"
            )
        return prompt, None
    if not prompt or not all(prompt):
        raise GenerationError(
            f"prompts of lengths {[len(row) for row in prompt]} must each have at least one "
            "token; begin an empty prompt with bos"
        )
    tokens, token_mask = pad_batch(prompt, pad_id, left=True)
    return tokens, None if bool(token_mask.all()) else token_mask


def _check_room(model: Decoder, n_prompt: int, max_new: int, cache: KVCache | None) -> None:
    if max_new < 1:
        raise GenerationError(f"max_new_tokens={max_new} must be at least 1")
    if cache is not None and cache.length:
        raise GenerationError(
            f"the cache holds {cache.length} tokens of another text; reset it or give a new one"
        )
    room = model.config.max_len
    if isinstance(cache, StaticCache):
        room = min(room, cache.max_len)
    if n_prompt + max_new > room:
        raise GenerationError(
            f"a prompt of {n_prompt} tokens and max_new_tokens={max_new} make "
            f"{n_prompt + max_new}, and there is room for {room}; shorten the prompt or ask for "
            f"at most {max(0, room - n_prompt)} new tokens"
        )
