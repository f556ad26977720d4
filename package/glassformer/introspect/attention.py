"""Attention seen and switched off: the weights of every head, and a model without some of them.

Book: visualization
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import GlassformerError, did_you_mean
from glassformer.introspect._parts import on_heads, parts_of
from glassformer.nn.multi_head import MultiHeadAttention

__all__ = ["ablate_heads", "capture_attention"]


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
        model: the model, neither compiled nor prepared.
        device: where the maps are kept; ``None`` leaves them where they are.

    Raises:
        GlassformerError: the model is compiled or prepared, or has no attention.

    Book: visualization
    """
    attentions = parts_of(model, MultiHeadAttention)
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


@contextmanager
def ablate_heads(model: nn.Module, heads: Mapping[str, Collection[int]]) -> Iterator[None]:
    """Run a model without some of its heads while the ``with`` block runs.

    ``with ablate_heads(model, {"decoder.blocks.0.self_attn": [1, 3]}): model(tokens)`` sets the
    outputs of heads 1 and 3 to zero before ``o_proj`` mixes the heads, on either path, so that
    they add nothing and get no gradient. Their weights can still be captured. When the block
    ends, also by an exception, the model is as before.

    Args:
        model: the model, neither compiled nor prepared.
        heads: name of an attention, as :func:`capture_attention` names it -> its heads to switch
            off, counted from 0. In a pruned model heads keep the numbers from before.

    Raises:
        GlassformerError: the model is compiled or prepared, or has no attention, a name is
            unknown, or a head is not there.

    Source: Michel et al. 2019, section 2.3. Book: visualization
    """
    attentions = parts_of(model, MultiHeadAttention)
    for name, indices in heads.items():
        if name not in attentions:
            raise GlassformerError(
                f"{name!r} is no attention of this model; {did_you_mean(name, attentions)}"
            )
        here = attentions[name].heads
        missing = [head for head in indices if head not in here]
        if missing:
            raise GlassformerError(
                f"{name} has {len(here)} heads and no head {missing[0]}; give some of "
                f"{', '.join(map(str, here)) or 'none'}"
            )
    with ExitStack() as hooks:
        for name, indices in heads.items():
            attention = attentions[name]
            places = [attention.heads.index(head) for head in sorted(set(indices))]
            if places:
                hooks.callback(on_heads(attention, _silencer(places)).remove)
        yield


def _silencer(silenced: list[int]) -> Callable[[Tensor], Tensor]:
    def silence(heads: Tensor) -> Tensor:
        silent = torch.zeros(heads.shape[-2], 1, dtype=torch.bool, device=heads.device)
        silent[silenced] = True
        return heads.masked_fill(silent, 0.0)

    return silence
