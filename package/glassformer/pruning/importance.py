"""How much a head or a layer matters: how far the loss would move if it began to go.

Book: pruning
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import ConfigError
from glassformer.evaluation.mode import device_of, evaluating
from glassformer.introspect._parts import parts_of
from glassformer.nn import Block, MultiHeadAttention
from glassformer.pruning.gates import Gate, gated_heads
from glassformer.training import Batch, TokenLoss, batch_loss

__all__ = ["head_importance", "layer_importance", "random_importance", "weakest_heads"]

Loss = Callable[[nn.Module, Batch], TokenLoss]


def head_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    normalize: bool = True,
    loss: Loss = batch_loss,
) -> dict[str, Float[Tensor, " n_heads"]]:
    """The sensitivity of the loss to each head: ``|d loss / d gate|`` at a gate of 1.

    Each token has a gate of its own, and the absolute values are averaged over all counted tokens
    of all batches. The model is in evaluation mode meanwhile and gets no gradients; afterwards it
    is as before.

    Args:
        model: a decoder, a translator, or with a ``loss`` of its own any model.
        batches: the text to judge by; how it is cut into batches changes nothing.
        normalize: divide the scores of each attention by their length (l2), as heads of different
            layers differ in scale.
        loss: of a model on a batch.

    Returns:
        Name of each attention -> a score for each head of the model before any pruning, on the
        CPU; NaN for heads that are gone.

    Raises:
        ConfigError: no batch with a token that counts, or no head is left.
        GlassformerError: the model is compiled or prepared, or has no attention.

    Source: Michel et al. 2019, section 4.1. Book: pruning
    """
    attentions = {n: a for n, a in parts_of(model, MultiHeadAttention).items() if a.heads}

    def attach(gates: dict[str, list[Tensor]]) -> AbstractContextManager[None]:
        def gate(name: str) -> Gate:
            def ones(heads: Tensor) -> Tensor:
                gates[name].append(torch.ones_like(heads[..., 0], requires_grad=True))
                return gates[name][-1]

            return ones

        return gated_heads(model, {name: gate(name) for name in attentions})

    scores = _sensitivity(model, batches, loss, list(attentions), attach)
    if normalize:
        scores = {name: score / score.norm().clamp(min=1e-20) for name, score in scores.items()}
    return _whole(model, scores)


def layer_importance(
    model: nn.Module, batches: Iterable[Batch], *, loss: Loss = batch_loss
) -> dict[str, float]:
    """The sensitivity of the loss to each block: ``|d loss / d gate|`` of what it adds.

    The gate multiplies the difference between what comes out of a block and what went in; at 0
    the block would be dropped. Tokens and model are treated as in :func:`head_importance`.

    Args:
        model, batches, loss: as in :func:`head_importance`.

    Returns:
        Name of each block, such as ``decoder.blocks.0`` -> its score.

    Raises:
        ConfigError: no batch with a token that counts.
        GlassformerError: the model is compiled or prepared, or has no block.

    Source: Molchanov et al. 2017, section 2.2. Book: pruning
    """
    blocks = parts_of(model, Block)

    @contextmanager
    def attach(gates: dict[str, list[Tensor]]) -> Iterator[None]:
        def gating(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
            def multiply(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
                gates[name].append(torch.ones_like(output[..., :1], requires_grad=True))
                return inputs[0] + gates[name][-1] * (output - inputs[0])

            return multiply

        with ExitStack() as hooks:
            for name, block in blocks.items():
                hooks.callback(block.register_forward_hook(gating(name)).remove)
            yield

    scores = _sensitivity(model, batches, loss, list(blocks), attach)
    return {name: float(score) for name, score in scores.items()}


def random_importance(model: nn.Module, *, seed: int = 0) -> dict[str, Float[Tensor, " n_heads"]]:
    """A score from 0 to 1 for each head, by chance: what any other score has to beat.

    Args:
        model: any model with attention.
        seed: the same one gives the same scores and leaves torch's random numbers alone.

    Raises:
        GlassformerError: the model is compiled or prepared, or has no attention.

    Book: pruning
    """
    generator = torch.Generator().manual_seed(seed)
    scores = {
        name: torch.rand(attention.n_heads, generator=generator)
        for name, attention in parts_of(model, MultiHeadAttention).items()
    }
    return _whole(model, scores)


def weakest_heads(
    importance: Mapping[str, Float[Tensor, " n_heads"]], n: int, *, group: int = 1
) -> dict[str, list[int]]:
    """The ``n`` heads with the lowest scores, as :func:`prune_heads` takes them.

    Args:
        importance: from :func:`head_importance` or :func:`random_importance`.
        n: heads to name, over all attentions together; a multiple of ``group``.
        group: query heads of a key/value head (``n_heads // n_kv_heads``): groups are judged by
            their sum and named as a whole. With one key/value head for all, 1 will do.

    Raises:
        ConfigError: more heads than there are, a negative number, or parts of groups.

    Book: pruning
    """
    candidates = sorted(
        (float(score[first : first + group].sum()), name, first)
        for name, score in importance.items()
        for first in range(0, len(score), group)
        if not score[first : first + group].isnan().any()
    )
    if n % group or not 0 <= n <= len(candidates) * group:
        raise ConfigError(
            f"n={n} must be from 0 to {len(candidates) * group}, in steps of group={group}"
        )
    chosen: dict[str, list[int]] = {}
    for _, name, first in candidates[: n // group]:
        chosen.setdefault(name, []).extend(range(first, first + group))
    return {name: sorted(chosen[name]) for name in importance if name in chosen}


def _sensitivity(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    names: list[str],
    attach: Callable[[dict[str, list[Tensor]]], AbstractContextManager[None]],
) -> dict[str, Tensor]:
    """Sums of |gradient| over all tokens, divided by the number of counted ones."""
    if not names:
        raise ConfigError("no head is left to judge; give a model with heads")
    device = device_of(model)
    sums: dict[str, Tensor] = {}
    n_tokens = 0
    for batch in batches:
        gates: dict[str, list[Tensor]] = {name: [] for name in names}
        with evaluating(model), torch.enable_grad(), attach(gates):
            result = loss(model, batch.to(device))
        flat = [(name, gate) for name, made in gates.items() for gate in made]
        gradients = torch.autograd.grad(
            result.total, [gate for _, gate in flat], allow_unused=True, materialize_grads=True
        )
        for (name, _), gradient in zip(flat, gradients, strict=True):
            score = gradient.cpu().double().abs().flatten(0, -2).sum(0)
            sums[name] = sums.get(name, torch.zeros_like(score)) + score
        n_tokens += result.n_tokens
    if not n_tokens:
        raise ConfigError("no token counts in these batches, so nothing can be judged; give text")
    return {name: (sums[name] / n_tokens).float() for name in names}


def _whole(model: nn.Module, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores at the numbers that heads had before any pruning."""
    whole = {}
    for name, attention in parts_of(model, MultiHeadAttention).items():
        whole[name] = torch.full((attention.whole[0],), math.nan)
        if attention.heads:
            whole[name][list(attention.heads)] = scores[name]
    return whole
