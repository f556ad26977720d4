"""One step of training: loss, gradient, clipping, update, in the only order that is right.

Book: training
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from glassformer.errors import ConfigError, GlassformerError
from glassformer.evaluation import device_of, evaluating
from glassformer.introspect import collect_router
from glassformer.models import Decoder, EncoderDecoder
from glassformer.nn import load_balancing_loss
from glassformer.training._ranks import is_replica, sum_over_ranks, whole, world_size
from glassformer.training._wrappers import unwrap
from glassformer.training.batches import Batch, TrainingData
from glassformer.training.loss import TokenLoss, chunked_token_loss, counted, token_loss
from glassformer.training.packing import Packing, packable, packed_decoder, packed_translator

__all__ = [
    "Precision",
    "StepResult",
    "autocast",
    "batch_loss",
    "make_scaler",
    "total_loss",
    "train_step",
]

Precision = Literal["float32", "bfloat16", "float16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class StepResult(NamedTuple):
    """What happened in one optimiser step, in plain numbers.

    Book: training
    """

    nll: float
    """Plain nats, summed over the tokens."""
    n_tokens: int
    """Targets that counted."""
    grad_norm: float
    """Length of the gradient of the mean loss, before clipping."""


def train_step(
    model: nn.Module,
    batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    label_smoothing: float = 0.0,
    balance: float = 0.0,
    clip_norm: float | None = 1.0,
    precision: Precision = "float32",
    scaler: torch.amp.GradScaler | None = None,
) -> StepResult:
    """One update from all the micro-batches together.

    The gradient is that of the mean over all their tokens, as if they were one big batch; with
    several processes, over the tokens of all of them. Where no token counts, nothing changes.

    Args:
        model: in training mode; its parameters are updated.
        batches: micro-batches; they go through the model one after the other.
        optimizer: holds the parameters; its learning rate is already set.
        label_smoothing, balance: as in :func:`batch_loss`.
        clip_norm: longest gradient allowed; longer ones are shortened to it. ``None``: no limit.
        precision: what the matrix products are computed in. The weights stay float32.
        scaler: from :func:`make_scaler`; needed to carry the scale over the steps of float16.

    Raises:
        GlassformerError: a loss or gradient that is not finite. The weights are untouched.
        ConfigError: a precision that the device cannot train in.

    Source: Goyal et al. 2017, section 3, for the accumulation; Pascanu et al. 2013 for the
    clipping; Micikevicius et al. 2018 for the scaling. Book: training
    """
    device = next(model.parameters()).device
    scaler = make_scaler(precision, device) if scaler is None else scaler
    own_tokens = sum(_count(model, batch) for batch in batches)
    n_tokens = int(sum_over_ranks([own_tokens], device)[0])
    if n_tokens == 0:
        return StepResult(0.0, 0, 0.0)

    optimizer.zero_grad()
    nll = torch.zeros((), device=device)
    for batch in batches:
        with autocast(precision, device):
            loss = batch_loss(
                model, batch.to(device), label_smoothing=label_smoothing, balance=balance
            )
        mean = loss.total / (n_tokens / world_size())  # engines average over the processes
        scaler.scale(mean).backward()
        nll += loss.nll
    scaler.unscale_(optimizer)
    limit = math.inf if clip_norm is None else clip_norm
    grad_norm = float(whole(nn.utils.clip_grad_norm_(model.parameters(), limit)))
    (nll_sum,) = sum_over_ranks([float(nll)], device)
    _refuse_non_finite(nll_sum, grad_norm, scaler)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return StepResult(nll_sum, n_tokens, grad_norm)


def batch_loss(
    model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0, balance: float = 0.0
) -> TokenLoss:
    """The loss of a model on one batch.

    Our own decoders and translators compute the places that a counted target depends on, and no
    padding (:mod:`glassformer.training.packing`). They stop before their output layer, and
    :func:`chunked_token_loss` does the rest. Any other model is called, and must return logits.

    Args:
        model: a decoder, or, for a batch with a source, a translator.
        batch: on the device of the model.
        label_smoothing: eps of :func:`token_loss`.
        balance: weight of :func:`glassformer.nn.load_balancing_loss`, added per token for every
            mixture of experts; 0.01 in its source. A batch that cannot be packed counts its
            padding there.

    Raises:
        GlassformerError: a ``balance`` for a model that is compiled or has no experts; a model
            that is prepared for writing.

    Book: training
    """
    if is_replica(model):
        return TokenLoss(*model(batch, label_smoothing, balance))
    if balance:
        with collect_router(model) as routings:
            loss = batch_loss(model, batch, label_smoothing=label_smoothing)
        crowding = sum(load_balancing_loss(r.probs, r.chosen) for r in routings.values())
        return dataclasses.replace(loss, total=loss.total + balance * loss.n_tokens * crowding)
    pairs = batch.source is not None
    if isinstance(model, EncoderDecoder if pairs else Decoder) and packable(model):
        return _packed_loss(model, batch, label_smoothing)
    if pairs:
        logits = model(batch.source, batch.inputs, source_mask=batch.source_mask)
    else:
        logits = model(batch.inputs)
    return token_loss(
        logits,
        batch.targets,
        target_mask=batch.target_mask,
        pad_id=_pad_id(model),
        label_smoothing=label_smoothing,
    )


def total_loss(model: nn.Module, data: TrainingData) -> TokenLoss:
    """The loss over every example of ``data``, once, in evaluation mode and without gradients.

    Sums over all tokens, so that no batch weighs more than its tokens; ``mean_nll`` is the figure
    to compare, and parts of the data add up.

    Book: training
    """
    device = device_of(model)
    nll, n_tokens = 0.0, 0
    with evaluating(model):
        for indices in data.epoch(0):
            loss = batch_loss(model, data.load(indices).to(device))
            nll += float(loss.nll)
            n_tokens += loss.n_tokens
    return TokenLoss(torch.tensor(nll), torch.tensor(nll), n_tokens)


def _packed_loss(
    model: Decoder | EncoderDecoder, batch: Batch, label_smoothing: float
) -> TokenLoss:
    counts = counted(batch.targets, batch.target_mask, model.config.pad_id)
    targets = Packing(_needed(counts))
    if isinstance(model, Decoder):
        rows = None if targets.full else targets
        hidden = packed_decoder(model, batch.inputs, rows)
    else:
        source = cast(Tensor, batch.source)
        real = torch.ones_like(source, dtype=torch.bool)
        sources = Packing(real if batch.source_mask is None else batch.source_mask)
        rows = None if targets.full and sources.full else targets
        hidden = packed_translator(
            model,
            source,
            batch.inputs,
            source_mask=batch.source_mask,
            packings=None if rows is None else (sources, rows),
        )
    return chunked_token_loss(
        hidden,
        model.head_weight,
        batch.targets if rows is None else rows.pack(batch.targets),
        bias=model.head_bias,
        target_mask=counts if rows is None else rows.pack(counts),
        label_smoothing=label_smoothing,
        pad_id=model.config.pad_id,
    )


def _needed(counts: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch time"]:
    """The places up to the last counted target of each row: causality hides the ones behind it."""
    return counts.flip(1).cumsum(1).flip(1) > 0


def autocast(
    precision: Precision, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Run matrix products in ``precision``; float32 changes nothing.

    Book: training
    """
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, _DTYPES[precision])


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """The loss scaling that float16 needs; for other precisions it passes everything through.

    float16 rounds gradients below 3e-8 to zero. Multiplying the loss by a large number lifts
    them; dividing the gradients by it again must come before anything looks at them.

    Raises:
        ConfigError: float16 anywhere but on CUDA, or a precision we do not know.

    Book: training
    """
    if precision not in _DTYPES:
        raise ConfigError(f"precision={precision!r} may be {', '.join(_DTYPES)}")
    if precision == "float16" and device.type != "cuda":
        raise ConfigError(
            f"precision='float16' needs a CUDA device and its loss scaling, but the model is on "
            f"{device.type}; use 'bfloat16' or 'float32'"
        )
    return torch.amp.GradScaler(device.type, enabled=precision == "float16")


def _pad_id(model: nn.Module) -> int | None:
    pad_id: int | None = getattr(getattr(unwrap(model), "config", None), "pad_id", None)
    return pad_id


def _count(model: nn.Module, batch: Batch) -> int:
    return int(counted(batch.targets, batch.target_mask, _pad_id(model)).sum())


def _refuse_non_finite(nll: float, grad_norm: float, scaler: torch.amp.GradScaler) -> None:
    """A scaler expects gradients that overflow now and then: it skips the step and scales less."""
    may_overflow = scaler.is_enabled() and scaler.get_scale() > 1
    if math.isfinite(nll) and (math.isfinite(grad_norm) or may_overflow):
        return
    scaler.update()  # ends the step for the scaler, which could not begin another one
    what = f"the gradient has length {grad_norm} at a loss sum of {nll:.4g}"
    if not math.isfinite(nll):
        what = f"the loss is {nll}"
    raise GlassformerError(
        f"{what}; the weights are untouched; go back to the last checkpoint, with a lower lr, a "
        "longer warm-up or a smaller clip"
    )
