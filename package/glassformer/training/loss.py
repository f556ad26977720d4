"""How surprised the model is by the right tokens: the loss of training and of every report.

Losses are sums over tokens, with the number of tokens beside them. A mean is taken once, at the
end, over all tokens of an optimiser step, so that no batch weighs more than its tokens.

Book: training
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from glassformer.errors import ConfigError, ShapeError

__all__ = ["TokenLoss", "chunked_token_loss", "counted", "token_loss"]


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """The loss of some tokens, added up.

    Book: training
    """

    total: Float32[Tensor, ""]
    """Sum of the smoothed losses, in nats. This is what gradients flow through."""
    nll: Float32[Tensor, ""]
    """Sum of the plain negative log-likelihoods, in nats. No gradient; what gets reported."""
    n_tokens: int
    """Number of targets that count."""

    @property
    def mean(self) -> Float32[Tensor, ""]:
        """``total`` per token; 0, with a gradient of 0, if no token counts."""
        return self.total / max(self.n_tokens, 1)

    @property
    def mean_nll(self) -> float:
        """Plain nats per token; 0 if no token counts."""
        return float(self.nll) / max(self.n_tokens, 1)

    @property
    def perplexity(self) -> float:
        """``exp`` of the plain nats per token, whatever the smoothing; infinite from 710 on."""
        return float(torch.tensor(self.mean_nll, dtype=torch.float64).exp())


def counted(
    targets: Int64[Tensor, "*lead"],
    target_mask: Bool[Tensor, "*lead"] | None = None,
    pad_id: int | None = None,
) -> Bool[Tensor, "*lead"]:
    """Which targets count: those that the mask lets through and that are not padding.

    Book: training
    """
    counts = torch.ones_like(targets, dtype=torch.bool) if target_mask is None else target_mask
    return counts if pad_id is None else counts & (targets != pad_id)


def token_loss(
    logits: Float[Tensor, "*lead vocab"],
    targets: Int64[Tensor, "*lead"],
    *,
    target_mask: Bool[Tensor, "*lead"] | None = None,
    pad_id: int | None = None,
    label_smoothing: float = 0.0,
) -> TokenLoss:
    """Negative log-likelihood of the targets, summed in float32, with label smoothing on request.

    With smoothing eps the target class is asked to have probability 1 - eps, and the other
    classes share eps equally. Padding is no class a model should ever predict, so it gets no
    share. Targets that do not count are left out before anything is computed: they add nothing,
    and nothing they hold can turn the loss into NaN.

    Args:
        logits: scores of the V classes.
        targets: the right classes.
        target_mask: True where a target counts; ``None`` if all do.
        pad_id: the padding class: no target that equals it counts.
        label_smoothing: eps, from 0 (none) to below 1; Vaswani et al. used 0.1.

    Raises:
        ShapeError: logits and targets do not belong together.
        ConfigError: eps outside 0 to 1, or no other class that could share it.

    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4. Szegedy's eps is
    shared by all classes, the target included: it is this eps times V / (V - 1).
    Book: training
    """
    _check(logits.shape[:-1], targets, target_mask)
    counts = counted(targets, target_mask, pad_id)
    log_probs = _rows(logits, counts).float().log_softmax(dim=-1)  # (n, V)
    loss, nll = _surprise(log_probs, _rows(targets, counts), pad_id, label_smoothing)
    return TokenLoss(loss.sum(), nll.detach().sum(), len(nll))


def _surprise(
    log_probs: Float[Tensor, "n vocab"],
    targets: Int64[Tensor, " n"],
    pad_id: int | None,
    eps: float,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The smoothed and the plain loss of each target; all of them count."""
    nll = -log_probs.gather(-1, targets[:, None])[:, 0]
    return _smooth(log_probs, nll, pad_id, eps) if eps else nll, nll


def _smooth(
    log_probs: Float[Tensor, "n vocab"],
    nll: Float[Tensor, " n"],
    pad_id: int | None,
    eps: float,
) -> Float[Tensor, " n"]:
    """``(1 - eps) nll`` plus ``eps`` times the mean surprise of the other classes."""
    n_others = log_probs.shape[-1] - (1 if pad_id is None else 2)
    if not 0.0 <= eps < 1.0 or n_others < 1:
        raise ConfigError(
            f"label_smoothing={eps} over {n_others} other classes; give 0 <= label_smoothing < 1 "
            "and a vocabulary with at least one other class"
        )
    if pad_id is not None:
        log_probs = log_probs.index_fill(-1, torch.tensor([pad_id], device=nll.device), 0.0)
    others = -log_probs.sum(dim=-1) - nll
    return (1 - eps) * nll + eps / n_others * others


def chunked_token_loss(
    hidden: Float[Tensor, "*lead d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int64[Tensor, "*lead"],
    *,
    bias: Float[Tensor, " vocab"] | None = None,
    target_mask: Bool[Tensor, "*lead"] | None = None,
    pad_id: int | None = None,
    label_smoothing: float = 0.0,
    chunk: int = 1024,
) -> TokenLoss:
    """:func:`token_loss` of ``hidden @ weight.T + bias``, without ever holding all the logits.

    The logits are the largest tensor of a small language model: tokens times vocabulary. Here
    ``chunk`` tokens at a time get their logits, their loss and its gradient, and the logits are
    forgotten. Targets that do not count never reach the output layer.

    Args:
        hidden: what the model computes before its output layer.
        weight, bias: the output layer.
        targets, target_mask, pad_id, label_smoothing: as in :func:`token_loss`.
        chunk: tokens at a time; it changes memory and speed, no number.

    Raises:
        ShapeError, ConfigError: as :func:`token_loss`.

    Book: training
    """
    _check(hidden.shape[:-1], targets, target_mask)
    if chunk < 1:
        raise ConfigError(f"chunk={chunk} must be at least 1 token; try 1024")
    counts = counted(targets, target_mask, pad_id)
    targets = _rows(targets, counts)
    total, nll = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        _rows(hidden, counts), weight, bias, targets, pad_id, label_smoothing, chunk
    )
    return TokenLoss(total, nll, len(targets))


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradients of one chunk after the other, both in the forward pass.

    The loss is a sum, so its gradients are sums over the chunks as well, and the backward pass
    only has to scale what is already there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        pad_id: int | None,
        label_smoothing: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        layer = [x.detach().requires_grad_(wanted) for x in (weight, bias) if x is not None]
        total, nll = (torch.zeros((), device=hidden.device) for _ in range(2))
        d_hidden, d_layer = torch.zeros_like(hidden), [torch.zeros_like(x) for x in layer]
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            rows = hidden[part].detach().requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                log_probs = F.linear(rows, *layer).float().log_softmax(dim=-1)
                losses, plain = _surprise(log_probs, targets[part], pad_id, label_smoothing)
                loss = losses.sum()
            total += loss.detach()
            nll += plain.detach().sum()
            if wanted:
                d_rows, *d_part = torch.autograd.grad(loss, (rows, *layer))
                d_hidden[part] = d_rows
                for whole, d in zip(d_layer, d_part, strict=True):
                    whole += d
        ctx.save_for_backward(d_hidden, *d_layer)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, *d_bias = (grads[0] * d for d in ctx.saved_tensors)
        return d_hidden, d_weight, d_bias[0] if d_bias else None, None, None, None, None


def _rows(x: Tensor, counts: Tensor) -> Tensor:
    """The entries that count, in one row after the other; without a copy if all do."""
    return x.flatten(0, counts.ndim - 1) if bool(counts.all()) else x[counts]


def _check(lead: torch.Size, targets: Tensor, target_mask: Tensor | None) -> None:
    if targets.shape != lead:
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)} but the model has predictions of shape "
            f"{tuple(lead)}; there must be one target for each"
        )
    if target_mask is not None and target_mask.shape != lead:
        raise ShapeError(
            f"target_mask has shape {tuple(target_mask.shape)}, the targets {tuple(lead)}; "
            "give one entry for each target, True where it counts"
        )
