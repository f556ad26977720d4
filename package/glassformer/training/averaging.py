"""The mean of a run's last weights, which translates better than any one of them.

Late in a run the weights wander around a good place; their mean lies nearer to it. Vaswani et al.
averaged their last 5 checkpoints, we average the weights of the last evaluations. An exponential
mean would do as well; the plain one has no rate to choose, and forgets the early weights for good.

Book: translation
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import CheckpointError, ConfigError
from glassformer.training._ranks import load_whole
from glassformer.training._wrappers import copied_weights, unwrap

__all__ = ["WeightAverage", "mean_weights"]

Weights = dict[str, Tensor]


def mean_weights(weights: Sequence[Weights]) -> Weights:
    """The mean of every tensor, added in float32; of whole numbers the last one.

    Raises:
        CheckpointError: no weights, or names and shapes that differ.

    Source: Vaswani et al. 2017, section 6.1. Book: translation
    """
    shapes = [{name: value.shape for name, value in one.items()} for one in weights]
    if not shapes or any(one != shapes[0] for one in shapes):
        raise CheckpointError(
            f"{len(shapes)} sets of weights with different names or shapes; give one or more of "
            "the same model"
        )
    return {
        name: _mean([one[name] for one in weights]) if last.is_floating_point() else last.clone()
        for name, last in weights[-1].items()
    }


class WeightAverage:
    """Copies of the weights at the last few moments, and their mean.

    Args:
        size: moments that are kept; it costs as many copies of the model.

    Raises:
        ConfigError: ``size`` below 1.

    Book: translation
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"size={size} must be at least 1: the current weights alone")
        self.size = size
        self.weights: dict[int, Weights] = {}
        """The step of each moment, and its weights."""

    def add(self, model: nn.Module, step: int) -> None:
        """Keep a copy of the weights, and forget the oldest if there are too many."""
        self.weights[step] = copied_weights(model)
        for old in sorted(self.weights)[: -self.size]:
            del self.weights[old]

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Run a block with the mean in the place of the model's weights; then they come back."""
        own = copied_weights(model)
        try:
            load_whole(unwrap(model), mean_weights(list(self.weights.values())))
            yield
        finally:
            load_whole(unwrap(model), own)

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which :meth:`load_state_dict` makes the same."""
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave, as a copy."""
        self.weights = {
            step: {name: value.clone() for name, value in weights.items()}
            for step, weights in state["weights"].items()
        }


def _mean(values: list[Tensor]) -> Tensor:
    total = torch.zeros_like(values[0], dtype=torch.float32)
    for value in values:
        total += value.to(total.device)  # a checkpoint is read onto the CPU
    return (total / len(values)).to(values[0].dtype)
