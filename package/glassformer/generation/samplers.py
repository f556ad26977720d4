"""From logits to the next token: pure functions that compose.

A *choice* maps logits (batch, vocab) and the text so far to ids (batch,): :func:`greedy`, or what
:func:`sampler` builds. A *shape* maps logits and the text so far to logits: what :func:`shaper`
builds. The functions they are made of map logits to logits. All compute in float32.

Book: kv_cache
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.errors import GenerationError

__all__ = [
    "Choice",
    "Shape",
    "Text",
    "apply_temperature",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "penalise_repetition",
    "sample",
    "sampler",
    "shaper",
]


class Text(NamedTuple):
    """The tokens so far, as a choice sees them: what the model continues and what it has added.

    For a decoder the prompt is part of it; for an encoder-decoder the source is not.

    Book: kv_cache
    """

    tokens: Int64[Tensor, "batch time"]
    token_mask: Bool[Tensor, "batch time"]
    """True where a token is real: not padding before the prompt or behind the end."""


Choice = Callable[[Tensor, Text], Tensor]
Shape = Callable[[Tensor, Text | None], Tensor]


def greedy(
    logits: Float[Tensor, "batch vocab"], text: Text | None = None
) -> Int64[Tensor, " batch"]:
    """The most likely token, whatever the text so far.

    Book: kv_cache
    """
    return logits.argmax(dim=-1)


def penalise_repetition(
    logits: Float[Tensor, "batch vocab"], text: Text, penalty: float
) -> Float[Tensor, "batch vocab"]:
    """Make the tokens of the text so far less likely, each once however often it stands there.

    A positive logit is divided by the penalty and a negative one multiplied, so 1 changes nothing
    and 1.2 is the paper's choice; below 1 repetition is rewarded. A prompt that is continued
    counts, padding and an encoder's source do not.

    Source: Keskar et al., "CTRL", 2019, section 4.1, which divides; a negative logit would become
    more likely so, and is multiplied.

    Raises:
        GenerationError: a penalty that is not from 1e-6 to 1e6: logits would not stay finite.

    Book: kv_cache
    """
    if not 1e-6 <= penalty <= 1e6:
        raise GenerationError(
            f"repetition_penalty={penalty} must be a positive number, from 1e-6 to 1e6; try 1.2, "
            "and 1 for none"
        )
    logits = logits.float()
    vocab_size = logits.shape[-1]
    real = text.tokens.masked_fill(~text.token_mask, vocab_size)  # a column of its own
    seen = torch.zeros(len(logits), vocab_size + 1, dtype=torch.bool, device=logits.device)
    seen = seen.scatter(-1, real, True)[:, :-1]
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def apply_temperature(
    logits: Float[Tensor, "batch vocab"], temperature: float
) -> Float[Tensor, "batch vocab"]:
    """Divide the logits: below 1 sharpens, above 1 flattens, 0 leaves only the most likely token.

    The largest logit is moved to 0 first, which changes no probability and lets the temperature
    come as near to 0 as it likes.

    Raises:
        GenerationError: a temperature that is negative or not finite.

    Book: kv_cache
    """
    if not (0 <= temperature < math.inf):
        raise GenerationError(
            f"temperature={temperature} must be a number from 0 (greedy) upwards; try 0.8"
        )
    logits = logits.float()
    if temperature == 0:
        return _keep_only(logits, logits.argmax(dim=-1, keepdim=True))
    below_best = logits - logits.amax(dim=-1, keepdim=True)  # 0 at the best: nothing overflows
    return below_best / max(temperature, torch.finfo(torch.float32).tiny)


def keep_top_k(logits: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Keep the ``k`` most likely tokens, exactly ``k`` also where several are equally likely.

    Raises:
        GenerationError: ``k`` below 1.

    Book: kv_cache
    """
    if k < 1:
        raise GenerationError(f"top_k={k} must be at least 1; leave it out to keep all tokens")
    logits = logits.float()
    return _keep_only(logits, logits.topk(min(k, logits.shape[-1])).indices)


def keep_top_p(logits: Float[Tensor, "batch vocab"], p: float) -> Float[Tensor, "batch vocab"]:
    """Keep the fewest most likely tokens whose probabilities reach ``p`` together.

    The most likely token always stays, so ``p=0`` keeps exactly it; ``p=1`` keeps all.

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.

    Raises:
        GenerationError: ``p`` outside 0 to 1.

    Book: kv_cache
    """
    if not 0 <= p <= 1:
        raise GenerationError(f"top_p={p} must lie between 0 and 1; try 0.9")
    logits = logits.float()
    if p == 1:  # rounding of the running sum must not cost the tail
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    reached_before = probabilities.cumsum(dim=-1) - probabilities
    cut = reached_before >= p
    cut[:, 0] = False
    return logits.masked_fill(cut.scatter(-1, order, cut), -math.inf)


def sample(
    logits: Float[Tensor, "batch vocab"], generator: torch.Generator | None = None
) -> Int64[Tensor, " batch"]:
    """Draw one token per row from ``softmax(logits)``.

    Book: kv_cache
    """
    probabilities = logits.float().softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def shaper(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Shape:
    """Build a shape: repetition penalty, then temperature, then top-k, then top-p.

    ``softmax(shape(logits, text))`` is the distribution that :func:`sampler` with the same values
    draws from. The text may be left out where nothing is penalised.

    Raises:
        GenerationError: a value out of range, at once and not at the first token.

    Book: kv_cache
    """

    def shape(logits: Tensor, text: Text | None = None) -> Tensor:
        if repetition_penalty != 1.0:
            if text is None:
                raise GenerationError(
                    f"repetition_penalty={repetition_penalty} needs the text so far; "
                    "give it as the second argument"
                )
            logits = penalise_repetition(logits, text, repetition_penalty)
        logits = apply_temperature(logits, temperature)
        if top_k is not None:
            logits = keep_top_k(logits, top_k)
        if top_p is not None:
            logits = keep_top_p(logits, top_p)
        return logits

    one = torch.zeros(1, 1)
    shape(one, Text(one.long(), one.bool()))  # checks the values
    return shape


def sampler(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
) -> Choice:
    """Build a choice: a draw from what :func:`shaper` with the same values leaves.

    With a ``seed`` the choice has its own random numbers and goes on from where it stopped when
    used again; without one it draws from torch's global ones.

    Raises:
        GenerationError: a value out of range, at once and not at the first token.

    Book: kv_cache
    """
    shape = shaper(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty
    )
    if seed is not None and not 0 <= seed < 2**63:
        raise GenerationError(f"seed={seed} must be from 0 to 2**63 - 1")
    generators: dict[torch.device, torch.Generator] = {}

    def choose(logits: Tensor, text: Text | None = None) -> Tensor:
        if seed is not None and logits.device not in generators:
            generators[logits.device] = torch.Generator(logits.device).manual_seed(seed)
        return sample(shape(logits, text), generators.get(logits.device))

    return choose


def _keep_only(logits: Tensor, indices: Tensor) -> Tensor:
    return torch.full_like(logits, -math.inf).scatter(-1, indices, logits.gather(-1, indices))
