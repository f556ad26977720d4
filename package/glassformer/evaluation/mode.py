"""Leave training mode for a moment, and come back exactly.

Book: training
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["device_of", "evaluating"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a block in evaluation mode without gradients, then restore what was.

    Each module gets its own training flag back, also after an exception: a part that was frozen
    in evaluation mode inside a model in training stays frozen. ``model.train()`` would wake it.

    Book: training
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter or buffer; the CPU if it has none. Book: training"""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next(tensors, torch.empty(0)).device
