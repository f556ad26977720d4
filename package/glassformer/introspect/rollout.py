"""From maps of single layers to one map of the whole stack.

Book: visualization
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import ShapeError

__all__ = ["attention_rollout"]


def attention_rollout(
    maps: Mapping[str, Float[Tensor, "_batch _heads _rows _columns"]],
) -> Float[Tensor, "batch time time"]:
    """How much of each input token reaches each position at the top, through all layers.

    Heads are averaged and half of every row is the residual connection, which carries a token to
    its own place; the layers' matrices are then multiplied, the first layer rightmost. Rows sum to
    one. A row that sees nothing keeps itself.

    Args:
        maps: weights of the self-attention of one stack, from its first layer to its last, as
            :func:`capture_attention` gives them.

    Raises:
        ShapeError: no map, or maps that are not square and of one size, such as those of a
            cross-attention or of a step with a cache.

    Source: Abnar & Zuidema 2020, equation 1. Book: visualization
    """
    if not maps:
        raise ShapeError("there is no map to roll out; give those of at least one layer")
    batch, _, size, _ = next(iter(maps.values())).shape
    for name, weights in maps.items():
        if (weights.shape[0], *weights.shape[2:]) != (batch, size, size):
            raise ShapeError(
                f"{name} has a map of shape {tuple(weights.shape)}; rollout follows one sequence "
                "through one stack, so give square maps of one size, such as all of an encoder"
            )
    rollout, *others = (_with_residual(weights) for weights in maps.values())
    for layer in others:
        rollout = layer @ rollout
    return rollout


def _with_residual(weights: Tensor) -> Tensor:
    """The mean over heads, half of it replaced by the stream that goes past the attention."""
    mean = weights.mean(dim=1)
    mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)
