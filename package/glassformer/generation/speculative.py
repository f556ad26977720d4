"""Speculative decoding: a small model drafts, the large one checks several tokens in one pass.

Book: kv_cache
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from glassformer.errors import GenerationError
from glassformer.evaluation.mode import evaluating
from glassformer.generation._session import Request, Session, open_session, prepare
from glassformer.generation.samplers import Shape, Text, sample, shaper
from glassformer.generation.step import Writer
from glassformer.kv_cache import GrowingCache, KVCache, SlidingWindowCache

__all__ = ["Speculation", "speculate", "verify_draft"]


@dataclass(frozen=True)
class Speculation:
    """What was written, and how much the drafts were worth.

    Book: kv_cache
    """

    tokens: list[int]
    log_probs: list[float]
    """Of each token under the large model itself, before temperature, top-k or top-p."""
    n_passes: int
    """Forward passes of the large model; one for each token would be the plain way."""
    n_judged: int
    """Drafted tokens that were accepted or rejected; those behind a rejected one are neither."""
    n_accepted: int

    @property
    def acceptance_rate(self) -> float:
        """Share of the judged tokens that were accepted; 0 where none was judged."""
        return self.n_accepted / max(1, self.n_judged)


def verify_draft(
    drafted: Int64[Tensor, " n_draft"],
    draft_probs: Float[Tensor, "n_draft vocab"],
    probs: Float[Tensor, "n_draft+1 vocab"],
    generator: torch.Generator | None = None,
) -> tuple[int, int]:
    """Accept drafted tokens from the left, and draw the one that follows them.

    Token ``x`` is accepted with probability ``min(1, p(x) / q(x))``, q being what it was drawn
    from and p what it should follow. The first that is rejected is replaced by a draw from
    ``max(0, p - q)``, normalised; where none is, the last p gives one more token. So every token
    follows p exactly, whatever q is.

    Args:
        drafted: the tokens, each drawn from its row of ``draft_probs``.
        draft_probs: q of each drafted token.
        probs: p of each drafted token, and of the one behind the last.
        generator: random numbers; torch's global ones by default.

    Returns:
        The number of accepted tokens, and the token that follows them.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023,
    algorithm 1 and theorem in appendix A.1.

    Book: kv_cache
    """
    n = len(drafted)
    p, q = (rows[:n].gather(1, drafted[:, None])[:, 0] for rows in (probs, draft_probs))
    lucky = torch.rand(n, generator=generator, device=probs.device) * q < p
    n_accepted = int(lucky.long().cumprod(dim=0).sum())
    rest = probs[n_accepted]
    if n_accepted < n:
        missing = (rest - draft_probs[n_accepted]).clamp(min=0)
        rest = missing if missing.any() else rest  # p = q but for rounding
    return n_accepted, int(torch.multinomial(rest, 1, generator=generator))


_GREEDY = shaper(temperature=0.0)


def speculate(
    model: Writer,
    draft: Writer,
    prompt: Sequence[int] | Int64[Tensor, " time"],
    *,
    max_new_tokens: int,
    n_draft: int = 4,
    bos_id: int | None = None,
    shape: Shape = _GREEDY,
    stop_ids: Sequence[int] = (),
    seed: int | None = None,
) -> Speculation:
    """Write what ``model`` would write alone, in fewer of its passes.

    ``draft`` writes ``n_draft`` tokens, ``model`` reads them all in one pass, and
    :func:`verify_draft` keeps those that fit. Tokens are distributed as if ``model`` alone had
    drawn them from ``softmax(shape(logits, text))``; with the default shape they are those of
    greedy decoding. One text at a time: rows of a batch would accept different numbers of tokens.

    Args:
        model: the large model, whose text it is.
        draft: a small model of the same kind and vocabulary.
        prompt: ids to continue, or the source of encoder-decoders.
        max_new_tokens: the most tokens to write.
        n_draft: tokens to draft before each pass of the large model.
        bos_id: what encoder-decoders begin with; decoders have it in the prompt.
        shape: maps logits and text so far to logits, for both models, as :func:`shaper` builds.
        stop_ids: any of these ends the text.
        seed: of the random numbers; torch's global ones without.

    Raises:
        GenerationError: as :func:`generate`, on models of different vocabularies, and on
            ``n_draft`` below 1, before anything is computed.

    Book: kv_cache
    """
    if n_draft < 1:
        raise GenerationError(f"n_draft={n_draft} must be at least 1; 4 is a good start")
    sizes = (model.config.vocab_size, draft.config.vocab_size)
    if sizes[0] != sizes[1]:
        raise GenerationError(
            f"the models have vocabularies of {sizes[0]} and {sizes[1]} tokens; a draft must use "
            "the tokenizer of the model that checks it"
        )
    rows = [[int(token) for token in prompt]]
    request, draft_request = (
        prepare(
            each,
            rows,
            max_new_tokens=max_new_tokens,
            bos_id=bos_id,
            stop_ids=stop_ids,
            cache=_cache_to_crop(each),
        )
        for each in (model, draft)
    )
    device = request.text.tokens.device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    with evaluating(model), evaluating(draft):
        return _speculate(request, draft_request, n_draft, shape, generator)


def _cache_to_crop(model: Writer) -> KVCache:
    """A cache that can take back rejected tokens, which one that forgets old ones cannot."""
    cache = model.new_cache()
    if isinstance(cache, SlidingWindowCache):
        return GrowingCache(len(cache.layers))
    return cache


def _speculate(
    request: Request,
    draft_request: Request,
    n_draft: int,
    shape: Shape,
    generator: torch.Generator | None,
) -> Speculation:
    session, drafter = open_session(request), open_session(draft_request)
    stop_ids = set(request.stop_ids.tolist())
    tokens: list[int] = []
    log_probs: list[float] = []
    n_passes = n_judged = n_accepted = 0
    while len(tokens) < request.max_new_tokens and not stop_ids.intersection(tokens):
        known = session.length
        room = min(n_draft, request.max_new_tokens - len(tokens) - 1)  # the pass itself adds one
        draft_probs = _draft(drafter, room, shape, generator)
        drafted = drafter.text.tokens[:, known:]
        session.append(drafted)
        logits = session.logits(room + 1)[0]
        probs = _shaped_probs(logits, session.text, shape)
        accepted, following = verify_draft(drafted[0], draft_probs, probs, generator)
        for each in (session, drafter):
            each.crop(known + accepted)
            each.append(torch.full_like(each.text.tokens[:, :1], following))
        new = session.text.tokens[0, known:, None]
        tokens += new[:, 0].tolist()
        log_probs += logits[: accepted + 1].log_softmax(dim=-1).gather(1, new)[:, 0].tolist()
        n_passes += 1
        n_judged += min(accepted + 1, room)
        n_accepted += accepted
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return Speculation(tokens[:end], log_probs[:end], n_passes, n_judged, n_accepted)


def _draft(
    drafter: Session, count: int, shape: Shape, generator: torch.Generator | None
) -> Float32[Tensor, "count vocab"]:
    """Let the small model write ``count`` tokens; return what each was drawn from."""
    shaped = [torch.empty(0, drafter.model.config.vocab_size, device=drafter.text.tokens.device)]
    for _ in range(count):
        shaped.append(shape(drafter.logits()[:, -1], drafter.text))
        drafter.append(sample(shaped[-1], generator)[:, None])
    return torch.cat(shaped).softmax(dim=-1)


def _shaped_probs(
    logits: Float32[Tensor, "n vocab"], text: Text, shape: Shape
) -> Float32[Tensor, "n vocab"]:
    """What follows each of the last n tokens, every one shaped by the text up to it."""
    first = text.tokens.shape[1] - len(logits) + 1
    texts = [Text(*(part[:, : first + i] for part in text)) for i in range(len(logits))]
    rows = [shape(row[None], seen) for row, seen in zip(logits, texts, strict=True)]
    return torch.cat(rows).softmax(dim=-1)
