"""Beam search: keep the few best texts at every step, and compare the finished ones.

Book: kv_cache
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from glassformer.errors import GenerationError
from glassformer.evaluation.mode import evaluating
from glassformer.generation._session import Request, open_session, prepare
from glassformer.generation.step import Writer
from glassformer.kv_cache import KVCache, StaticCache

__all__ = ["Hypothesis", "beam_search"]


@dataclass(frozen=True)
class Hypothesis:
    """One text that beam search found; the prompt is not part of it.

    ``score`` is ``sum(log_probs) / len(tokens) ** length_penalty``. The stop token counts in
    both, and so does every token of a text that met the limit without one.

    Book: kv_cache
    """

    tokens: list[int]
    log_probs: list[float]
    score: float
    stopped: bool
    """True where it ended with a stop token, False where it met the limit."""


def beam_search(
    model: Writer,
    prompt: Int64[Tensor, "batch time"] | Sequence[Sequence[int]],
    *,
    n_beams: int,
    max_new_tokens: int,
    n_best: int = 1,
    length_penalty: float = 1.0,
    bos_id: int | None = None,
    stop_ids: Sequence[int] = (),
    cache: KVCache | None = None,
    use_cache: bool = True,
) -> list[list[Hypothesis]]:
    """The ``n_best`` best texts found for each prompt or source, the best first.

    A beam has ``n_beams`` places. At every step, all running texts with every token behind them
    are ranked by log-probability, and the best take the places. A text that ends with a stop token
    keeps its place for good, so one text fewer runs on; that way the unlikely ends of a text do
    not count as results while better ones still run, and one beam is greedy decoding. At the limit
    the texts that still run take part as they are, by the same score.

    A prompt is done when nothing runs, or earlier, when no running text can still be among the
    ``n_best``. The latter changes no result: a text of log-probability ``p`` only loses by
    growing, so it scores at most ``p / length ** length_penalty``, the length being that at the
    limit, or that after one more token where the penalty is negative. A prompt that is done leaves
    the batch (from a static cache it cannot, and nothing comes of its rows), so no prompt disturbs
    another.

    Args:
        model: a decoder or an encoder-decoder, read as in :func:`generate`.
        prompt: token ids, a tensor of real tokens (batch, time) or one list per row.
        n_beams: texts to keep.
        max_new_tokens: the most tokens to write.
        n_best: texts to return; fewer come back where there are no more.
        length_penalty: 0 compares log-probabilities, which favours short texts; 1 compares means
            per token; more favours long texts still. From -10 to 10.
        bos_id: what an encoder-decoder begins with; a decoder has it in the prompt.
        stop_ids: any of these ends a text.
        cache: an empty cache to use; a static one has ``n_beams`` rows for each prompt.
        use_cache: False reads everything again for each token.

    Source: Sutskever et al., "Sequence to Sequence Learning with Neural Networks", 2014, section
    3.2; the score is that of Wu et al. 2016, equation 14, with the plain length as its penalty.

    Raises:
        GenerationError: as :func:`generate`, and on ``n_best`` above ``n_beams`` or numbers
            below 1, before anything is computed.

    Book: kv_cache
    """
    if not 1 <= n_best <= n_beams:
        raise GenerationError(
            f"n_best={n_best} texts of n_beams={n_beams} are not to be had; "
            "ask for 1 to n_beams, or widen the beam"
        )
    if not -10 <= length_penalty <= 10:  # a power of any length stays a number
        raise GenerationError(
            f"length_penalty={length_penalty} must be a number from -10 to 10; try 1.0"
        )
    request = prepare(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        bos_id=bos_id,
        stop_ids=stop_ids,
        cache=cache,
        use_cache=use_cache,
    )
    with evaluating(model):
        search = _Search(request, n_beams, n_best, length_penalty)
        search.run()
    return [texts[:n_best] for texts in search.found]


class _Best(NamedTuple):
    """What takes the places of the beams next, (prompts, beams), the best first."""

    totals: Tensor
    """Log-probability of the whole text, this token included; -inf where a place is empty."""
    steps: Tensor
    """Log-probability of the token alone."""
    tokens: Tensor
    parents: Tensor
    """Row of the text that is continued."""


class _Search:
    """The beams of a batch, as flat rows: prompt 0 has rows 0 to K - 1, prompt 1 the next K."""

    def __init__(self, request: Request, n_beams: int, n_best: int, length_penalty: float) -> None:
        self.n_beams = n_beams
        self.n_best = n_best
        self.length_penalty = length_penalty
        self.limit = request.max_new_tokens
        self.stop_ids = request.stop_ids
        self.session = open_session(request)
        self.start = self.session.length
        self.static = isinstance(request.cache, StaticCache)
        n_prompts, device = len(request.text.tokens), request.text.tokens.device
        self.found: list[list[Hypothesis]] = [[] for _ in range(n_prompts)]
        self.prompts = list(range(n_prompts))  # those in the batch
        # log-probability of every running text; -inf where a place of a beam is empty
        self.totals = torch.full((n_prompts, n_beams), -math.inf, device=device)
        self.totals[:, 0] = 0.0
        self.log_probs = torch.empty(n_prompts * n_beams, 0, device=device)

    def run(self) -> None:
        logits = self._first_logits()
        for length in range(1, self.limit + 1):
            best = self._continue(logits)
            ended = torch.isin(best.tokens, self.stop_ids)
            self._finish(best, ended, at_limit=length == self.limit)
            if length == self.limit:
                return
            self._run_on(best, ended)
            self._leave(length)
            if not self.prompts:
                return
            logits = self.session.logits()[:, -1]

    def _first_logits(self) -> Float32[Tensor, "rows vocab"]:
        """Read each prompt once where the cache can grow, and copy what was read to its beams."""
        copies = torch.arange(len(self.prompts), device=self.totals.device)
        copies = copies.repeat_interleave(self.n_beams)
        if self.static:
            self.session.select(copies)
            return self.session.logits()[:, -1]
        logits = self.session.logits()[:, -1]
        self.session.select(copies)
        return logits.index_select(0, copies)

    def _continue(self, logits: Float32[Tensor, "rows vocab"]) -> _Best:
        n_prompts, n_beams = self.totals.shape
        # of one text, no more continuations than there are places can matter
        values, tokens = logits.topk(min(n_beams, logits.shape[-1]))
        steps = values - logits.logsumexp(dim=-1, keepdim=True)
        totals = self.totals.view(-1, 1) + steps
        parents = torch.arange(len(logits), device=logits.device)[:, None].expand_as(tokens)
        parts = [part.reshape(n_prompts, -1) for part in (totals, steps, tokens, parents)]
        order = parts[0].topk(n_beams).indices
        best = _Best(*(part.gather(1, order) for part in parts))
        taken = torch.tensor([len(self.found[prompt]) for prompt in self.prompts])
        places = torch.arange(n_beams) < n_beams - taken[:, None]
        return best._replace(totals=best.totals.where(places.to(order.device), -math.inf))

    def _finish(self, best: _Best, ended: Bool[Tensor, "prompts beams"], *, at_limit: bool) -> None:
        """Keep the texts that have ended, or all of them at the limit."""
        final = (ended | at_limit) & best.totals.isfinite()
        rows = best.parents[final]
        tokens = self.session.text.tokens[rows, self.start :]
        tokens = torch.cat((tokens, best.tokens[final][:, None]), dim=1)
        log_probs = torch.cat((self.log_probs[rows], best.steps[final][:, None]), dim=1)
        parts = (final.nonzero()[:, 0], tokens, log_probs, ended[final])
        for i, ids, steps, stopped in zip(*(part.tolist() for part in parts), strict=True):
            found = self.found[self.prompts[i]]
            found.append(Hypothesis(ids, steps, self._score(math.fsum(steps), len(ids)), stopped))
            found.sort(key=lambda text: text.score, reverse=True)

    def _run_on(self, best: _Best, ended: Bool[Tensor, "prompts beams"]) -> None:
        """Replace the texts of every beam by those that take their places and do not end."""
        parents = best.parents.flatten()
        self.totals = best.totals.masked_fill(ended, -math.inf)
        self.session.select(parents, same_source=True)
        self.session.append(best.tokens.view(-1, 1))
        steps = best.steps.view(-1, 1)
        self.log_probs = torch.cat((self.log_probs.index_select(0, parents), steps), dim=1)

    def _leave(self, length: int) -> None:
        """Take the prompts that are done out of the batch."""
        totals = self.totals.amax(dim=1).tolist()
        stay = [i for i, total in enumerate(totals) if not self._is_done(i, total, length)]
        # the rows of a static cache stay: what still runs there is no longer among the best
        if len(stay) == len(self.prompts) or (self.static and stay):
            return
        kept = torch.tensor(stay, dtype=torch.int64, device=self.totals.device)
        self.prompts = [self.prompts[i] for i in stay]
        if stay:
            rows = torch.arange(self.totals.numel(), device=kept.device).view_as(self.totals)
            rows = rows.index_select(0, kept).flatten()
            self.totals = self.totals.index_select(0, kept)
            self.log_probs = self.log_probs.index_select(0, rows)
            self.session.select(rows)

    def _is_done(self, i: int, total: float, length: int) -> bool:
        """Whether prompt ``i``, whose best running text has log-probability ``total``, is done."""
        found = self.found[self.prompts[i]]
        if total == -math.inf:
            return True
        best_length = self.limit if self.length_penalty >= 0 else length + 1
        bound = self._score(total, best_length)
        return len(found) >= self.n_best and found[self.n_best - 1].score >= bound

    def _score(self, log_prob: float, length: int) -> float:
        return float(log_prob / length**self.length_penalty)
