"""Keep the weights of the best moment.

Book: training
"""

import math
from typing import Any

from torch import Tensor, nn

from glassformer.training._ranks import load_whole
from glassformer.training._wrappers import copied_weights, unwrap

__all__ = ["BestModel"]


class BestModel:
    """The lowest dev loss so far, and a copy of the weights that reached it.

    A copy, because a reference would follow the model on to worse weights. NaN is never best, and
    never in the way of a better loss after it.

    Book: training
    """

    def __init__(self) -> None:
        self.loss = math.inf
        self.step: int | None = None
        self.stale = 0
        """Losses in a row that were not lower; NaN is one of them."""
        self.weights: dict[str, Tensor] = {}

    def update(self, loss: float, model: nn.Module, step: int) -> bool:
        """Take over loss and weights if ``loss`` is lower than all before; say whether it is."""
        if not loss < self.loss:  # also if loss is NaN
            self.stale += 1
            return False
        self.stale = 0
        self.loss = float(loss)
        self.step = step
        self.weights = copied_weights(model)
        return True

    def restore(self, model: nn.Module) -> None:
        """Put the best weights into ``model``; without any, leave it as it is."""
        if self.weights:
            load_whole(unwrap(model), self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which :meth:`load_state_dict` makes the same."""
        return {
            "loss": self.loss,
            "step": self.step,
            "stale": self.stale,
            "weights": self.weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave, as a copy."""
        self.loss, self.step, self.stale = state["loss"], state["step"], state["stale"]
        self.weights = {name: value.clone() for name, value in state["weights"].items()}
