"""PyTorch's own Transformer layers, in both directions.

Two things differ, and both are settled here and nowhere else: ``nn.MultiheadAttention`` keeps its
three projections in one matrix, and its boolean masks say True for what is **hidden**, ours for
what is seen.

Book: evolution
"""

from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from glassformer.errors import ConfigError, MaskError
from glassformer.interop._tables import to_ours, to_theirs
from glassformer.interop._torch_layers import (
    attention_table,
    check_attention,
    layers_of,
    make_attention,
    make_block,
    make_layer,
    make_norm,
    make_their_norm,
    stack_table,
)
from glassformer.nn import Block, MultiHeadAttention, Stack

__all__ = [
    "attention_from_torch",
    "attention_to_torch",
    "mask_from_torch",
    "mask_to_torch",
    "stack_from_torch",
    "stack_to_torch",
    "transformer_from_torch",
    "transformer_to_torch",
]

M = TypeVar("M", bound=nn.Module)


def mask_from_torch(mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Our mask (True = may attend) from one of theirs: boolean True, or -inf, hides.

    It serves for their ``attn_mask`` as for their ``key_padding_mask``, which is the opposite of
    our ``token_mask``.

    Raises:
        MaskError: numbers other than 0 and -inf, which are a bias and no mask.

    Book: evolution
    """
    if mask.dtype == torch.bool:
        return ~mask
    seen = mask == 0
    if not bool((seen | (mask == -torch.inf)).all()):
        raise MaskError(
            f"a mask of dtype {mask.dtype} must hold 0 for seen and -inf for hidden and nothing "
            "else; pass other numbers as a bias"
        )
    return seen


def mask_to_torch(mask: Bool[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Their boolean mask (True = hidden) from ours. Book: evolution"""
    return ~mask


def attention_from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Our attention with the weights of theirs.

    Raises:
        ConfigError: what ours does not have: keys of another width, learned extra keys, no bias.

    Book: evolution
    """
    table = attention_table(module.embed_dim)
    return _filled(make_attention(module), to_ours(module.state_dict(), table), module)


def attention_to_torch(attention: MultiHeadAttention) -> nn.MultiheadAttention:
    """Theirs, batch first, with the weights of ours.

    Raises:
        ConfigError: what theirs does not have: fewer key heads than query heads, another width of
            heads, projections without a bias.

    Book: evolution
    """
    check_attention(attention)
    theirs = nn.MultiheadAttention(
        attention.q_proj.in_features,
        attention.n_heads,
        dropout=attention.dropout,
        batch_first=True,
        device="meta",
    )
    table = attention_table(theirs.embed_dim)
    return _filled(theirs, to_theirs(attention.state_dict(), table), attention)


def stack_from_torch(module: nn.TransformerEncoder | nn.TransformerDecoder) -> Stack:
    """Our blocks with the weights of their layers; masks go through :func:`mask_from_torch`.

    Raises:
        ConfigError: an activation or a norm that ours does not have, layers without biases, or
            parts of one layer with several rates of dropout or eps.

    Book: evolution
    """
    cross = isinstance(module, nn.TransformerDecoder)
    with torch.device("meta"):
        blocks = [make_block(layer) for layer in layers_of(module)]
        norm = None if module.norm is None else make_norm(module.norm)
    table = stack_table(blocks, cross=cross, norm=norm is not None)
    return _filled(Stack(blocks, norm), to_ours(module.state_dict(), table), module)


def stack_to_torch(stack: Stack) -> nn.TransformerEncoder | nn.TransformerDecoder:
    """Their encoder, or decoder if the blocks listen to a memory, with the weights of ours.

    Raises:
        ConfigError: what their layers do not have, such as gates, RMSNorm, grouped heads or norms
            of one layer with several eps.

    Book: evolution
    """
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    cross = blocks[0].cross_attn is not None
    if stack.relative is not None:
        raise ConfigError("nn.Transformer has no relative positions; keep this model in ours")
    with torch.device("meta"):
        made: list[Any] = [make_layer(block) for block in blocks]
        norm = None if stack.norm is None else make_their_norm(stack.norm)
        theirs = (
            nn.TransformerDecoder(made[0], len(made), norm)
            if cross
            else nn.TransformerEncoder(made[0], len(made), norm, enable_nested_tensor=False)
        )
    theirs.layers = nn.ModuleList(made)
    table = stack_table(blocks, cross=cross, norm=norm is not None)
    return _filled(theirs, to_theirs(stack.state_dict(), table), stack)


def transformer_from_torch(module: nn.Transformer) -> tuple[Stack, Stack]:
    """Our encoder and decoder stacks from theirs. Raises as :func:`stack_from_torch`.

    Book: evolution
    """
    return stack_from_torch(module.encoder), stack_from_torch(module.decoder)


def transformer_to_torch(encoder: Stack, decoder: Stack) -> nn.Transformer:
    """Their Transformer, batch first, from our stacks. Raises as :func:`stack_to_torch`.

    Book: evolution
    """
    sides = stack_to_torch(encoder), stack_to_torch(decoder)
    attention = layers_of(sides[0])[0].self_attn
    theirs = nn.Transformer(
        attention.embed_dim,
        attention.num_heads,
        custom_encoder=nn.Identity(),
        custom_decoder=nn.Identity(),
        batch_first=True,
    )
    # it would initialise afresh what it is made with
    theirs.encoder, theirs.decoder = sides
    return theirs.train(encoder.training)


def _filled(module: M, weights: dict[str, Tensor], source: nn.Module) -> M:
    """``module`` with its own copy of the weights, in the mode of its source."""
    module.load_state_dict({k: v.detach().clone() for k, v in weights.items()}, assign=True)
    return module.train(source.training)
