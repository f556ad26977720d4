"""Heads and layers that are gone for good: smaller matrices, fewer blocks.

Book: pruning
"""

import copy
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from torch import nn

from glassformer.config import Removed, TransformerConfig
from glassformer.errors import ConfigError
from glassformer.models import Decoder, Encoder, EncoderDecoder
from glassformer.nn import MultiHeadAttention, Stack

__all__ = ["drop_layers", "every_other", "prune_heads"]

M = TypeVar("M", Decoder, Encoder, EncoderDecoder)


def prune_heads(model: M, heads: Mapping[str, Collection[int]]) -> M:
    """A copy of ``model`` without some query heads: its projections are smaller.

    It computes what ``model`` computes with the same heads switched off by
    :func:`glassformer.introspect.ablate_heads`. Heads keep the numbers that they had before any
    pruning, so removing A and then B is removing both at once; the config of the copy records
    them, and saving, loading and caches follow it.

    Where key/value heads serve groups of query heads (``n_kv_heads < n_heads``), each of them must
    go on serving equally many: remove whole groups, whose key/value heads go too, or the same
    number of query heads from each group. With one key/value head any set will do. All heads of an
    attention may go; it then adds only the bias of its ``o_proj``.

    Args:
        model: not quantised, not compiled; left untouched.
        heads: name of an attention, such as ``decoder.blocks.0.self_attn`` -> heads to remove.

    Raises:
        ConfigError: an unknown attention, a head that is not there or is gone already, groups that
            would differ in size, no head at all, or weights that are quantised.

    Source: Michel et al. 2019, section 4. Book: pruning
    """
    if not any(heads.values()):
        raise ConfigError("no head to prune; name at least one, such as {name: [0]}")
    attentions = {n: m for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)}
    unknown = [name for name in heads if name not in attentions]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no attention of this model; they are {', '.join(attentions)}"
        )
    for name in heads:
        _refuse_unusual(name, attentions[name])
    pruned = copy.deepcopy(model)
    record = {name: set(gone) for name, gone in pruned.config.pruned_heads}
    for name, removed in heads.items():
        attention = pruned.get_submodule(name)
        if removed and isinstance(attention, MultiHeadAttention):
            attention.remove_heads(removed)
            record[name] = record.get(name, set()) | set(removed)
    pruned.config = dataclasses.replace(pruned.config, pruned_heads=_as_pairs(record))
    return pruned


def drop_layers(model: M, layers: Collection[int], *, stack: str | None = None) -> M:
    """A copy of ``model`` without some blocks; the stream goes past where they were.

    Blocks keep the numbers that they had before any pruning as the names of what is gone, so
    dropping 0 and then 2 is dropping both at once. In the copy itself the blocks that are left are
    ``blocks.0``, ``blocks.1`` and so on, and its caches have an entry for each of them.

    Args:
        model: left untouched.
        layers: blocks to drop; at least one must stay.
        stack: ``encoder`` or ``decoder``; needed where a model has both.

    Raises:
        ConfigError: an unknown stack, a block that is not there or is gone already, no block to
            drop, or none that would stay.

    Source: Fan et al. 2020, section 3. Book: pruning
    """
    config: TransformerConfig = model.config
    stack = _stack_name(config, stack)
    gone_before = set(dict(config.dropped_layers).get(stack, ()))
    whole = config.stacks[stack] + len(gone_before)
    numbers = [i for i in range(whole) if i not in gone_before]
    missing = [i for i in layers if i not in numbers]
    if missing or not layers or not set(numbers) - set(layers):
        raise ConfigError(
            f"cannot drop blocks {', '.join(map(str, layers)) or '(none)'} of the {stack}: it has "
            f"{', '.join(map(str, numbers))}; give some of these, and leave at least one"
        )
    kept = [place for place, number in enumerate(numbers) if number not in layers]
    smaller = copy.deepcopy(model)
    part = smaller.get_submodule(stack)
    if isinstance(part, Stack):
        part.blocks = nn.ModuleList(part.blocks[place] for place in kept)
    moved = {f"{stack}.blocks.{old}": f"{stack}.blocks.{new}" for new, old in enumerate(kept)}
    record = {}
    for name, heads in config.pruned_heads:
        block, attention = name.rsplit(".", 1)
        if not block.startswith(f"{stack}."):
            record[name] = set(heads)
        elif block in moved:
            record[f"{moved[block]}.{attention}"] = set(heads)
    dropped = {name: set(gone) for name, gone in config.dropped_layers}
    dropped[stack] = gone_before | set(layers)
    changes: dict[str, Any] = {
        **_depths(config, stack, len(kept)),
        "pruned_heads": _as_pairs(record),
        "dropped_layers": _as_pairs(dropped),
    }
    smaller.config = dataclasses.replace(smaller.config, **changes)
    return smaller


def every_other(n_layers: int, keep: int) -> tuple[int, ...]:
    """Which of ``n_layers`` blocks to drop so that ``keep`` stay, spread evenly.

    Of 6 blocks, keeping 3 drops 0, 2 and 4: every other one. It suits models that were trained with
    ``layer_drop`` and have learnt to do without any of their blocks.

    Raises:
        ConfigError: not ``1 <= keep <= n_layers``.

    Source: Fan et al. 2020, section 3. Book: pruning
    """
    if not 1 <= keep <= n_layers:
        raise ConfigError(f"keep={keep} must be from 1 to n_layers={n_layers}")
    stay = {(i + 1) * n_layers // keep - 1 for i in range(keep)}
    return tuple(layer for layer in range(n_layers) if layer not in stay)


def _stack_name(config: TransformerConfig, stack: str | None) -> str:
    names = list(config.stacks)
    if stack is None and len(names) == 1:
        return names[0]
    if stack not in names:
        raise ConfigError(f"stack={stack!r} is none of this model's; give {' or '.join(names)}")
    return stack


def _depths(config: TransformerConfig, stack: str, n_layers: int) -> dict[str, int]:
    """The fields that say how deep the stacks are once one of them has ``n_layers`` blocks."""
    if len(config.stacks) == 1:
        return {"n_layers": n_layers}
    depths = {**config.stacks, stack: n_layers}
    return {"n_layers": depths["decoder"], "n_encoder_layers": depths["encoder"]}


def _refuse_unusual(name: str, attention: MultiHeadAttention) -> None:
    """Only plain matrices can be cut: not codes, and none with an adapter beside it."""
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        projection = getattr(attention, part)
        if type(projection) is not nn.Linear or hasattr(projection.weight, "__tensor_flatten__"):
            raise ConfigError(
                f"{name}.{part} is a {type(projection).__name__} that cannot be cut; prune the "
                "plain model first, then quantise or adapt it"
            )


def _as_pairs(record: Mapping[str, Collection[int]]) -> Removed:
    return tuple((name, tuple(sorted(gone))) for name, gone in record.items())
