"""What training asks of the other processes; with one process there is nothing to ask.

Book: translation
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "Replica",
    "is_replica",
    "load_whole",
    "rank",
    "sum_over_ranks",
    "wait_for_all",
    "whole",
    "world_size",
]


class Replica(nn.Module):
    """What data-parallel engines wrap: a module whose one forward pass is the whole loss.

    Engines move weights and gradients around ``forward``, so nothing may go past it.

    Book: translation
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._loss = loss

    def forward(
        self, batch: Any, label_smoothing: float, balance: float
    ) -> tuple[Tensor, Tensor, int]:
        """Sum of the smoothed losses, sum of the plain ones, and the number of tokens."""
        loss = self._loss(self.module, batch, label_smoothing=label_smoothing, balance=balance)
        return loss.total, loss.nll, loss.n_tokens


def is_replica(model: nn.Module) -> bool:
    """Whether ``model`` is a :class:`Replica`, on its own or in an engine. Book: translation"""
    return isinstance(model, Replica) or isinstance(model._modules.get("module"), Replica)


def world_size() -> int:
    """Number of processes that train together. Book: translation"""
    return dist.get_world_size() if _together() else 1


def rank() -> int:
    """Number of this process among them, from 0. Book: translation"""
    return dist.get_rank() if _together() else 0


def wait_for_all() -> None:
    """Go on when all processes have come here. Book: translation"""
    if world_size() > 1:
        dist.barrier()


def sum_over_ranks(values: Sequence[int | float], device: torch.device) -> list[float]:
    """Each of the values, added up over all processes, in float64.

    Book: translation
    """
    own = [float(value) for value in values]
    if world_size() == 1:
        return own
    total = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return cast(list[float], total.tolist())


def whole(state: Any) -> Any:
    """A state in which every tensor that lies in shards has been put together.

    All processes must ask for it at the same time.

    Book: translation
    """
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole(value) for value in state)
    return state.full_tensor() if hasattr(state, "full_tensor") else state


def load_whole(
    model: nn.Module,
    weights: dict[str, Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    moments: dict[str, Any] | None = None,
) -> None:
    """Load weights, and perhaps the state of an optimiser, that :func:`whole` made.

    Book: translation
    """
    wanted = model.state_dict()
    model.load_state_dict({n: _like(value, wanted.get(n)) for n, value in weights.items()})
    if optimizer is None or moments is None:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        number: {name: _like(value, parameters[number]) for name, value in values.items()}
        for number, values in moments["state"].items()
    }
    optimizer.load_state_dict({**moments, "state": state})


def _like(value: Any, example: Any) -> Any:
    """``value`` in shards as ``example`` is, if it is, and is of the same shape."""
    if not hasattr(example, "full_tensor") or value.shape != example.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(example.device)
    return distribute_tensor(value, example.device_mesh, example.placements)


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()
