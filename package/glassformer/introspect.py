"""Looking inside a model without changing it.

Book: visualization
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import GlassformerError
from glassformer.nn.multi_head import MultiHeadAttention

__all__ = ["capture_attention"]


@contextmanager
def capture_attention(
    model: nn.Module, *, device: torch.device | str | None = "cpu"
) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every layer and head while the ``with`` block runs.

    ``with capture_attention(model) as maps: model(tokens)`` fills
    ``maps["decoder.blocks.0.self_attn"]`` with weights of shape (B, H, T, S): detached, before
    dropout, one map per head, rows summing to one. Of several forward passes the last one stays.
    The model computes the same output as always, by the explicit path; when the block ends, also by
    an exception, everything is as before.

    Args:
        model: the model, not compiled.
        device: where the maps are kept; ``None`` leaves them where they are.

    Raises:
        GlassformerError: the model is compiled or has no attention.

    Book: visualization
    """
    # torch.compile wraps a module in one that holds it as `_orig_mod`
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        raise GlassformerError(
            "a compiled model does not run the hooks that record its weights; pass the model that "
            "was given to torch.compile"
        )
    attentions = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    if not attentions:
        raise GlassformerError(f"{type(model).__name__} has no MultiHeadAttention to look at")
    maps: dict[str, Tensor] = {}
    was_eager = {name: module.eager for name, module in attentions.items()}
    handles = []
    try:
        for name, module in attentions.items():
            module.eager = True
            handles.append(module.weights_tap.register_forward_hook(_recorder(maps, name, device)))
        yield maps
    finally:
        for handle in handles:
            handle.remove()
        for name, module in attentions.items():
            module.eager = was_eager[name]


def _recorder(
    maps: dict[str, Tensor], name: str, device: torch.device | str | None
) -> Callable[[nn.Module, Any, Tensor], None]:
    def record(module: nn.Module, inputs: Any, weights: Tensor) -> None:
        kept = weights.detach()
        maps[name] = kept.clone() if device is None else kept.to(device, copy=True)

    return record
