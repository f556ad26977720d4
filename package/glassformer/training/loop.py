"""The training loop: a generator of reports, in a state that can be saved after each of them.

Book: training
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from glassformer.config import check_number
from glassformer.errors import CheckpointError, ConfigError, GlassformerError
from glassformer.nn import Stack
from glassformer.training._ranks import load_whole, rank, whole
from glassformer.training._wrappers import unwrap
from glassformer.training.averaging import WeightAverage
from glassformer.training.batches import Batch, TrainingData
from glassformer.training.best import BestModel
from glassformer.training.distributed import gather, whole_model
from glassformer.training.optimizer import make_optimizer
from glassformer.training.schedule import warmup_constant, warmup_cosine, warmup_inverse_sqrt
from glassformer.training.step import Precision, make_scaler, train_step

__all__ = ["Schedule", "StepReport", "TrainSettings", "Trainer"]

Schedule = Literal["cosine", "inverse_sqrt", "constant"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The knobs of a training run.

    Batch size and order belong to the data. Weights and dropout start from torch's global random
    numbers: call ``torch.manual_seed`` before the model is built.

    Args:
        steps: optimiser steps of the whole run.
        lr: peak learning rate.
        warmup: steps until it is reached.
        schedule: what comes after: half a cosine to a tenth, 1/sqrt(step), or flat.
        accumulate: micro-batches per optimiser step. The last step of an epoch takes what is left.
        weight_decay: of the matrices.
        label_smoothing: eps; reports always give the plain loss.
        balance: weight of the balancing loss of every mixture of experts
            (:func:`batch_loss`); reports leave it out too.
        clip_norm: longest gradient allowed; ``None`` for any.
        precision: of the matrix products.
        checkpoint_blocks: recompute activations in the backward pass, to save memory.
        eval_every: steps between dev losses, the last step always included; ``None`` for none.
        average: what is evaluated, and kept as the best, is the mean of the weights at the last
            ``average`` evaluations (:class:`WeightAverage`); 1 for the current weights.
        patience: evaluations in a row without a new best after which the run ends; ``None`` for
            all steps. A dev loss of NaN is never the best, and counts as one without.

    Raises:
        ConfigError: a value that makes no sense.

    Book: training
    """

    steps: int
    lr: float = 1e-3
    warmup: int = 100
    schedule: Schedule = "cosine"
    accumulate: int = 1
    weight_decay: float = 0.1
    label_smoothing: float = 0.0
    balance: float = 0.0
    clip_norm: float | None = 1.0
    precision: Precision = "float32"
    checkpoint_blocks: bool = False
    eval_every: int | None = None
    average: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "warmup", "accumulate", "eval_every", "average", "patience"):
            value, least = getattr(self, name), int(name != "warmup")
            check_number(name, value, optional=name in ("eval_every", "patience"))
            if isinstance(value, float):
                raise ConfigError(f"{name}={value} must be a whole number")
            if value is not None and value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        for name in ("lr", "weight_decay", "balance", "label_smoothing", "clip_norm"):
            check_number(name, getattr(self, name), optional=name == "clip_norm")
        if self.eval_every is None and (self.average > 1 or self.patience is not None):
            raise ConfigError(
                f"average={self.average} and patience={self.patience} go by evaluations; give "
                "eval_every, the steps between them"
            )
        for name in ("lr", "weight_decay", "balance"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be finite and not negative")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ConfigError(f"label_smoothing={self.label_smoothing} must be from 0 to below 1")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ConfigError(f"clip_norm={self.clip_norm} must be positive, or None for no limit")
        for name, choices in (("schedule", get_args(Schedule)), ("precision", get_args(Precision))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} may be {', '.join(choices)}")

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if self.schedule == "cosine":
            return self.lr * warmup_cosine(step, warmup=self.warmup, total=self.steps)
        if self.schedule == "inverse_sqrt":
            return self.lr * warmup_inverse_sqrt(step, warmup=self.warmup)
        return self.lr * warmup_constant(step, warmup=self.warmup)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON-ready data; ``TrainSettings(**data)`` is the way back."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One optimiser step in plain numbers.

    Book: training
    """

    step: int
    """Steps done, this one included."""
    loss: float
    """Plain nats per token of its training batch, before the update."""
    lr: float
    grad_norm: float
    """Length of the gradient before clipping."""
    n_tokens: int
    seconds: float
    """Of the step alone, without the dev loss."""
    dev_loss: float | None = None
    """Nats per token on the dev text after the update, where it was time for it."""


class Trainer:
    """A model, its data and its optimiser, and how far they have come.

    Args:
        model: what is trained, where it is: its device decides.
        data: the micro-batches, such as :class:`WindowBatches`.
        settings: the knobs.
        dev_loss: measures the model on text it is not trained on, such as
            ``lambda model: evaluate_nll(model, dev_ids, window=128).nll``.

    Raises:
        ConfigError: a precision that the model's device cannot train in; ``eval_every`` without
            ``dev_loss``.

    Book: training
    """

    def __init__(
        self,
        model: nn.Module,
        data: TrainingData,
        settings: TrainSettings,
        *,
        dev_loss: Callable[[nn.Module], float] | None = None,
    ) -> None:
        if settings.eval_every is not None and dev_loss is None:
            raise ConfigError(
                f"eval_every={settings.eval_every} but nothing to evaluate with; give dev_loss"
            )
        self.model = model
        self.data = data
        self.settings = settings
        self.optimizer = make_optimizer(model, lr=settings.lr, weight_decay=settings.weight_decay)
        self.device = next(model.parameters()).device
        self.scaler = make_scaler(settings.precision, self.device)
        for module in model.modules():
            if isinstance(module, Stack):
                module.checkpoint_blocks = settings.checkpoint_blocks
        self.step = 0
        self.history: list[StepReport] = []
        self.best = BestModel()
        self.average = WeightAverage(settings.average)
        self._dev_loss = dev_loss
        self._place = (0, 0)  # epoch, micro-batches done in it
        self._order: tuple[int, list[list[int]]] | None = None  # of one epoch, read once

    def run(self, until: int | None = None) -> Iterator[StepReport]:
        """Train up to step ``until`` (or until :attr:`done`), and report after every step.

        Each report finds the trainer in a state that is complete: save it, sample from the model,
        or stop for good; a later :meth:`run` goes on from there.

        Raises:
            GlassformerError: a loss or gradient that is not finite, with the number of the step.
        """
        self.model.train()
        until = self.settings.steps if until is None else until
        while self.step < until and not self.done:
            yield self._advance()

    @property
    def done(self) -> bool:
        """Whether the run has ended: at its last step, or out of patience."""
        patience = self.settings.patience
        stopped = patience is not None and self.best.stale >= patience
        return stopped or self.step >= self.settings.steps

    def _advance(self) -> StepReport:
        started = time.perf_counter()
        lr = self.settings.lr_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        batches, place = self._next_batches()
        try:
            result = train_step(
                self.model,
                batches,
                self.optimizer,
                label_smoothing=self.settings.label_smoothing,
                balance=self.settings.balance,
                clip_norm=self.settings.clip_norm,
                precision=self.settings.precision,
                scaler=self.scaler,
            )
        except GlassformerError as error:
            raise type(error)(f"step {self.step + 1}: {error}") from error
        seconds = time.perf_counter() - started
        self._place = place
        self.step += 1
        report = StepReport(
            step=self.step,
            loss=result.nll / max(result.n_tokens, 1),
            lr=lr,
            grad_norm=result.grad_norm,
            n_tokens=result.n_tokens,
            seconds=seconds,
            dev_loss=self.evaluate() if self._time_to_evaluate() else None,
        )
        self.history.append(report)
        return report

    def _next_batches(self) -> tuple[list[Batch], tuple[int, int]]:
        """The micro-batches of the next step, and the place in the data behind them."""
        epoch, done = self._place
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, [list(batch) for batch in self.data.epoch(epoch)])
        order = self._order[1]
        chosen = order[done : done + self.settings.accumulate]
        done += len(chosen)
        place = (epoch, done) if done < len(order) else (epoch + 1, 0)
        return [self.data.load(indices) for indices in chosen], place

    def _time_to_evaluate(self) -> bool:
        every = self.settings.eval_every
        return every is not None and (self.step % every == 0 or self.step == self.settings.steps)

    def evaluate(self) -> float:
        """The dev loss now; if it is the lowest so far, :attr:`best` copies the weights.

        With ``average`` above 1, both are of the mean weights. The model itself is unchanged.

        Raises:
            ConfigError: the trainer has no ``dev_loss``.
        """
        if self._dev_loss is None:
            raise ConfigError("this trainer has no dev_loss; give it one when it is made")
        if self.settings.average == 1:
            return self._measure(self._dev_loss)
        self.average.add(self.model, self.step)
        with self.average.applied(self.model):
            return self._measure(self._dev_loss)

    def _measure(self, dev_loss: Callable[[nn.Module], float]) -> float:
        loss = float(dev_loss(whole_model(self.model)))
        self.best.update(loss, self.model, self.step)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """All that a fresh trainer needs to go on as if nothing had happened.

        Weights, optimiser, loss scale, place in the data, torch's random numbers, best and recent
        weights and history, as tensors and plain data. The tensors are the live ones: save or copy
        them before the next step.
        """
        return {
            **self._identity(),
            "step": self.step,
            "place": list(self._place),
            "model": whole(unwrap(self.model).state_dict()),
            "optimizer": whole(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "random": gather([_random_state(self.device)]),
            "best": self.best.state_dict(),
            "average": self.average.state_dict(),
            "history": _pack(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state_dict` described, torch's global random numbers included.

        Raises:
            CheckpointError: the state is of another model, other settings or other data. Nothing
                is changed then. What a run of an earlier version lacks has its default.
        """
        owners = {"config": self._config, "settings": self.settings}
        for name, ours in self._identity().items():
            theirs = _filled(state.get(name), owners.get(name))
            if theirs != ours:
                raise CheckpointError(
                    f"this state is of a run with other {name}: {_difference(theirs, ours)}; "
                    "build the trainer with the same, or start a new run"
                )
        moments = copy.deepcopy(state["optimizer"])
        load_whole(unwrap(self.model), state["model"], self.optimizer, moments)
        self.scaler.load_state_dict(state["scaler"])
        self.best.load_state_dict(state["best"])
        self.average.load_state_dict(state["average"])
        self.step = state["step"]
        self._place = (state["place"][0], state["place"][1])
        self.history = _unpack(state["history"])
        _set_random_state(state["random"][rank()], self.device)

    @property
    def _config(self) -> Any:
        return getattr(unwrap(self.model), "config", None)

    def _identity(self) -> dict[str, Any]:
        return {
            "config": None if self._config is None else self._config.to_dict(),
            "settings": self.settings.to_dict(),
            "data": self.data.fingerprint,
        }


def _filled(theirs: Any, owner: Any) -> Any:
    """What a run saved before some fields were there: it had what are their defaults now."""
    if not (isinstance(theirs, dict) and dataclasses.is_dataclass(owner)):
        return theirs
    new = [field for field in dataclasses.fields(owner) if field.name not in theirs]
    return theirs | {f.name: f.default for f in new if f.default is not dataclasses.MISSING}


def _difference(theirs: Any, ours: Any) -> str:
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        return f"{theirs!r} there, {ours!r} here"
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return ", ".join(f"{key}={theirs.get(key)!r} there, {ours.get(key)!r} here" for key in keys)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device.type).get_rng_state(*_which(device))
    return state


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        module = torch.get_device_module(device.type)
        module.set_rng_state(state[device.type], *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """CUDA has a generator for each GPU, and else answers for the current one; MPS has one."""
    return (device,) if device.type == "cuda" else ()


def _pack(history: list[StepReport]) -> dict[str, Tensor]:
    """Reports as two tensors, compact and quick to load however long the run."""
    rows = [dataclasses.astuple(report) for report in history]
    values = [[math.nan if value is None else float(value) for value in row] for row in rows]
    width = len(dataclasses.fields(StepReport))
    return {
        "values": torch.tensor(values, dtype=torch.float64).reshape(-1, width),
        "evaluated": torch.tensor([row[-1] is not None for row in rows], dtype=torch.bool),
    }


def _unpack(packed: dict[str, Tensor]) -> list[StepReport]:
    return [
        StepReport(
            step=int(step),
            loss=loss,
            lr=lr,
            grad_norm=grad_norm,
            n_tokens=int(n_tokens),
            seconds=seconds,
            dev_loss=dev_loss if evaluated else None,
        )
        for (step, loss, lr, grad_norm, n_tokens, seconds, dev_loss), evaluated in zip(
            packed["values"].tolist(), packed["evaluated"].tolist(), strict=True
        )
    ]
