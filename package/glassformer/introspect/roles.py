"""What each head does most of the time, found by counting.

Book: visualization
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import ShapeError

__all__ = ["head_roles"]


def head_roles(
    maps: Mapping[str, Float[Tensor, "batch _heads time time"]],
    *,
    separators: Bool[Tensor, "batch time"] | None = None,
    period: int | None = None,
) -> dict[str, Float[Tensor, "layers heads"]]:
    """The share of its attention that each head spends on what a role asks for, from 0 to 1.

    Roles are ``"previous token"``, ``"next token"``, ``"itself"`` and ``"first token"``, the last
    without the row of the first token itself; ``"separator"`` where the separators are marked; and
    for tokens that repeat after ``period`` places ``"induction"``: the token that came after the
    last time. A share is a mean over all rows that have such a token, and over the batch.

    Args:
        maps: weights of one stack of self-attention, all layers with equally many heads, as
            :func:`capture_attention` gives them; no row may be padding.
        separators: True at tokens that stand for no word, such as [CLS] and [SEP].
        period: length of the random sequence that the tokens repeat.

    Raises:
        ShapeError: no map, maps that are not square and of one shape, or a period that leaves no
            row.

    Source: Clark et al. 2019 for the places, Olsson et al. 2022 for induction.
    Book: visualization
    """
    if not maps or len({tuple(weights.shape) for weights in maps.values()}) != 1:
        raise ShapeError("roles need the maps of at least one layer, all of one shape")
    every = torch.stack(list(maps.values()), dim=1)  # batch, layers, heads, time, time
    length = every.shape[-1]
    if every.shape[-2] != length or length < 2:
        raise ShapeError(
            f"maps of shape {tuple(every.shape[-2:])} are not those of a self-attention over two "
            "or more tokens, in which tokens have neighbours"
        )
    if period is not None and not 1 <= period < length:
        raise ShapeError(f"period={period} must be from 1 to {length - 1}, so that a token repeats")
    t = torch.arange(length, device=every.device)
    roles = {
        "previous token": every[..., t[1:], t[:-1]],
        "next token": every[..., t[:-1], t[1:]],
        "itself": every[..., t, t],
        "first token": every[..., 1:, 0],
    }
    if separators is not None:
        roles["separator"] = (every * separators[:, None, None, None]).sum(dim=-1)
    if period is not None:
        again = t[period:]
        roles["induction"] = every[..., again, again - period + 1]
    return {role: share.mean(dim=(0, -1)) for role, share in roles.items()}
