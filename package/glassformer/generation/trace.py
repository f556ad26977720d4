"""Generation step by step, with what the model hesitated between.

Book: visualization
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor

from glassformer.errors import GenerationError
from glassformer.evaluation.mode import evaluating
from glassformer.generation._session import Step, prepare, steps
from glassformer.generation.samplers import Choice, greedy
from glassformer.generation.step import Writer
from glassformer.introspect import capture_attention

__all__ = ["TraceStep", "trace_generation"]


@dataclass(frozen=True, eq=False)
class TraceStep:
    """One token, under the model's own distribution: before temperature, top-k or top-p.

    Book: visualization
    """

    token: int
    confidence: float
    """Probability of the token."""
    entropy: float
    """Of the distribution, in nats: 0 where the model is certain, log(vocab) where it knows
    nothing."""
    alternatives: list[tuple[int, float]]
    """The most likely tokens with their probabilities, the best first."""
    attention: dict[str, Tensor]
    """Weights (1, H, T, S) of every attention that ran, T the tokens read in this step; empty
    unless asked for."""


def trace_generation(
    model: Writer,
    prompt: Sequence[int] | Int64[Tensor, " time"],
    *,
    max_new_tokens: int,
    bos_id: int | None = None,
    choose: Choice = greedy,
    stop_ids: Sequence[int] = (),
    n_alternatives: int = 5,
    attention: bool = False,
) -> list[TraceStep]:
    """Write as :func:`generate` does for one prompt or source, and keep what each step was like.

    With ``attention`` the first step holds the maps of the whole prompt (of an encoder too), and
    each later one a row per head: where the token just written looks. Whatever happens, the
    model is afterwards as it was before.

    Args:
        model: a decoder or an encoder-decoder.
        prompt: ids to continue, or the source of an encoder-decoder.
        max_new_tokens: the most tokens to write.
        bos_id: what an encoder-decoder begins with; a decoder has it in the prompt.
        choose: as in :func:`generate`.
        stop_ids: any of these ends the text.
        n_alternatives: how many of the most likely tokens to keep.
        attention: keep the attention weights of every layer and head, on the CPU.

    Raises:
        GenerationError: as :func:`generate`, and on ``n_alternatives`` below 1.

    Book: visualization
    """
    if n_alternatives < 1:
        raise GenerationError(f"n_alternatives={n_alternatives} must be at least 1; try 5")
    request = prepare(
        model,
        [[int(token) for token in prompt]],
        max_new_tokens=max_new_tokens,
        bos_id=bos_id,
        stop_ids=stop_ids,
    )
    traced: list[TraceStep] = []
    written = steps(request, choose)
    with evaluating(model):
        while True:
            with ExitStack() as stack:
                maps = stack.enter_context(capture_attention(model)) if attention else {}
                step = next(written, None)
            if step is None:
                return traced
            traced.append(_trace_step(step, n_alternatives, maps))


def _trace_step(step: Step, n_alternatives: int, maps: dict[str, Tensor]) -> TraceStep:
    log_probs = step.logits[0].log_softmax(dim=-1)
    best = log_probs.topk(min(n_alternatives, len(log_probs)))
    probabilities = log_probs.exp()
    surprise = log_probs.where(probabilities > 0, 0.0)  # 0 log 0 = 0
    return TraceStep(
        token=int(step.tokens),
        confidence=float(step.log_probs.exp()),
        entropy=float(-(probabilities * surprise).sum()),
        alternatives=list(zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)),
        attention=maps,
    )
