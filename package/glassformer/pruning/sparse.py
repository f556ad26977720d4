"""A whole model that listens to few keys.

Book: pruning
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from glassformer.errors import ConfigError
from glassformer.functional.sparse import keep_top_weights
from glassformer.introspect._parts import parts_of
from glassformer.nn import MultiHeadAttention

__all__ = ["sparse_attention"]


@contextmanager
def sparse_attention(model: nn.Module, top_k: int) -> Iterator[None]:
    """Let every attention of a model keep its ``top_k`` largest weights while the block runs.

    ``with sparse_attention(model, 8): evaluate_nll(model, ids, window=64)`` shows what quality is
    left. The explicit path computes it, so it is no faster. When the block ends, also by an
    exception, the model is as before.

    Args:
        model: not compiled.
        top_k: keys that each query of each head may listen to.

    Raises:
        ConfigError: ``top_k`` below 1.
        GlassformerError: the model is compiled or has no attention.

    Source: Zhao et al. 2019. Book: pruning
    """
    attentions = parts_of(model, MultiHeadAttention).values()
    if isinstance(top_k, bool) or top_k < 1:
        raise ConfigError(f"top_k={top_k} must be at least 1: a query has to listen to something")
    with ExitStack() as undo:
        for attention in attentions:
            handle = attention.weights_tap.register_forward_hook(_keep(top_k))
            undo.callback(handle.remove)
            undo.callback(setattr, attention, "eager", attention.eager)
            attention.eager = True
        yield


def _keep(top_k: int) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def keep(module: nn.Module, inputs: Any, weights: Tensor) -> Tensor:
        return keep_top_weights(weights, top_k)

    return keep
