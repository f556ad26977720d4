"""From logits to the next token: pure functions that compose.

A *choice* maps logits (batch, vocab) to ids (batch,): :func:`greedy`, :func:`sample`, or what
:func:`sampler` builds. The others map logits to logits. All compute in float32.

Book: kv_cache
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from glassformer.errors import GenerationError

__all__ = ["Choice", "apply_temperature", "greedy", "keep_top_k", "keep_top_p", "sample", "sampler"]

Choice = Callable[[Tensor], Tensor]


def greedy(logits: Float[Tensor, "batch vocab"]) -> Int64[Tensor, " batch"]:
    """The most likely token.

    Book: kv_cache
    """
    return logits.argmax(dim=-1)


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


def sampler(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Choice:
    """Build a choice: temperature, then top-k, then top-p, then a draw.

    With a ``seed`` the choice has its own random numbers and goes on from where it stopped when
    used again; without one it draws from torch's global ones.

    Raises:
        GenerationError: a value out of range, at once and not at the first token.

    Book: kv_cache
    """

    def reshape(logits: Tensor) -> Tensor:
        logits = apply_temperature(logits, temperature)
        if top_k is not None:
            logits = keep_top_k(logits, top_k)
        if top_p is not None:
            logits = keep_top_p(logits, top_p)
        return logits

    generators: dict[torch.device, torch.Generator] = {}

    def choose(logits: Tensor) -> Tensor:
        if seed is None:
            return sample(reshape(logits))
        if logits.device not in generators:
            generators[logits.device] = torch.Generator(logits.device).manual_seed(seed)
        return sample(reshape(logits), generators[logits.device])

    reshape(torch.zeros(1, 1))  # checks the values
    if seed is not None and not 0 <= seed < 2**63:
        raise GenerationError(f"seed={seed} must be from 0 to 2**63 - 1")
    return choose


def _keep_only(logits: Tensor, indices: Tensor) -> Tensor:
    return torch.full_like(logits, -math.inf).scatter(-1, indices, logits.gather(-1, indices))
