"""One layer of PyTorch's Transformer as one of our blocks, and back: parts, names, refusals.

Book: evolution
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.config import Activation
from glassformer.errors import ConfigError
from glassformer.interop._tables import Table, both, fused, layers
from glassformer.nn import Block, FeedForward, LayerNorm, MultiHeadAttention

_Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def attention_table(d_model: int, ours: str = "", theirs: str = "") -> Table:
    """The three projections as one matrix and one bias, then the output projection.

    Book: evolution
    """

    def thirds(kind: str) -> dict[str, int]:
        return {f"{ours}{name}_proj.{kind}": d_model for name in "qkv"}

    return [
        *fused(f"{theirs}in_proj_weight", thirds("weight")),
        *fused(f"{theirs}in_proj_bias", thirds("bias")),
        *both(f"{ours}o_proj", f"{theirs}out_proj"),
    ]


def layer_table(d_model: int, *, cross: bool) -> Table:
    """One encoder layer, or one decoder layer, which also listens to a memory.

    Book: evolution
    """
    listening = [
        *attention_table(d_model, "cross_attn.", "multihead_attn."),
        *both("cross_attn_norm", "norm2"),
    ]
    return [
        *attention_table(d_model, "self_attn.", "self_attn."),
        *both("self_attn_norm", "norm1"),
        *(listening if cross else []),
        *both("feed_forward.up_proj", "linear1"),
        *both("feed_forward.down_proj", "linear2"),
        *both("feed_forward_norm", "norm3" if cross else "norm2"),
    ]


def stack_table(blocks: Sequence[Block], *, cross: bool, norm: bool) -> Table:
    """All layers of a stack and its closing norm. Book: evolution"""
    d_model = blocks[0].self_attn.q_proj.in_features
    layer = layer_table(d_model, cross=cross)
    closing = both("norm", "norm") if norm else []
    return [*layers("blocks.{i}", "layers.{i}", len(blocks), layer), *closing]


def make_attention(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Our attention for theirs, without its weights. Book: evolution"""
    if module.in_proj_weight is None or module.in_proj_bias is None:
        raise ConfigError("kdim, vdim or bias=False have no counterpart; use one width and biases")
    if module.bias_k is not None or module.add_zero_attn:
        raise ConfigError("add_bias_kv and add_zero_attn have no counterpart; leave them out")
    with torch.device("meta"):
        return MultiHeadAttention(module.embed_dim, module.num_heads, dropout=module.dropout)


def make_block(layer: Any) -> Block:
    """One of our blocks for one of their layers, without its weights. Book: evolution"""
    cross = isinstance(layer, nn.TransformerDecoderLayer)
    places = (1, 2, 3) if cross else (1, 2)
    check_same("eps", [make_norm(getattr(layer, f"norm{i}")).eps for i in places])
    check_same("dropout", [getattr(layer, f"dropout{i}").p for i in places])
    return Block(
        make_attention(layer.self_attn),
        FeedForward(
            layer.linear1.in_features,
            layer.linear1.out_features,
            activation=_activation(layer.activation),
            dropout=layer.dropout.p,
        ),
        make_norm=partial(make_norm, layer.norm1),
        cross_attn=make_attention(layer.multihead_attn) if cross else None,
        norm_position="pre" if layer.norm_first else "post",
        dropout=layer.dropout1.p,
    )


def _activation(given: Callable[[Tensor], Tensor]) -> Activation:
    """Our name of a function or module, found by what it computes."""
    names: dict[Activation, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "silu": F.silu,
    }
    with torch.device("cpu"):
        x = torch.linspace(-30, 30, 121)  # wide enough for what is cut off at 6, or at 20
        for name, known in names.items():
            if torch.equal(given(x.clone()), known(x)):
                return name
    raise ConfigError(f"activation {given} has no counterpart; use one of {', '.join(names)}")


def make_norm(norm: nn.Module) -> LayerNorm:
    """One of our norms for one of theirs. Book: evolution"""
    if not isinstance(norm, nn.LayerNorm) or norm.bias is None:
        raise ConfigError(f"{norm} has no counterpart; use nn.LayerNorm with weight and bias")
    return LayerNorm(norm.normalized_shape[0], eps=norm.eps)


def check_same(what: str, values: Sequence[float]) -> None:
    """Refuse several values where the other side has one for a whole layer. Book: evolution"""
    if len(set(values)) > 1:
        raise ConfigError(
            f"{what} of {', '.join(map(str, values))} within one layer has no counterpart; give "
            "all its parts the same"
        )


def layers_of(module: nn.TransformerEncoder | nn.TransformerDecoder) -> list[Any]:
    """Their layers, all of PyTorch's own kinds. Book: evolution"""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    for layer in module.layers:
        if not isinstance(layer, kinds):
            raise ConfigError(f"{type(layer).__name__} is none of PyTorch's own layers")
    return list(module.layers)


def check_attention(attention: MultiHeadAttention) -> None:
    """Refuse attention that ``nn.MultiheadAttention`` cannot hold. Book: evolution"""
    d_model = attention.q_proj.in_features
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    if any(p.bias is None or p.weight.shape != (d_model, d_model) for p in projections):
        raise ConfigError(
            "nn.MultiheadAttention has square projections with a bias, so it cannot hold grouped "
            "heads, heads of another width or projections without a bias"
        )


def make_layer(block: Block) -> nn.Module:
    """One of their layers for one of our blocks, without its weights. Book: evolution"""
    network = block.feed_forward
    if not isinstance(network, FeedForward) or network.gate_proj is not None:
        raise ConfigError("nn.Transformer has no gates and no experts; keep this model in ours")
    if network.up_proj.bias is None:
        raise ConfigError("nn.Transformer's layers have biases; build ours with bias=True")
    parts = (block.self_attn_norm, block.cross_attn_norm, block.feed_forward_norm)
    norms = [make_their_norm(norm) for norm in parts if norm is not None]
    check_same("eps", [norm.eps for norm in norms])
    check_attention(block.self_attn)
    kind: type[_Layer] = nn.TransformerEncoderLayer
    if block.cross_attn is not None:
        check_attention(block.cross_attn)
        kind = nn.TransformerDecoderLayer
    layer = kind(
        block.self_attn.q_proj.in_features,
        block.self_attn.n_heads,
        network.up_proj.out_features,
        block.dropout.p,
        network.act,
        norms[0].eps,
        batch_first=True,
        norm_first=block.pre_norm,
    )
    layer.self_attn.dropout = block.self_attn.dropout
    layer.dropout.p = network.dropout.p
    if block.cross_attn is not None and isinstance(layer, nn.TransformerDecoderLayer):
        layer.multihead_attn.dropout = block.cross_attn.dropout
    return layer


def make_their_norm(norm: nn.Module) -> nn.LayerNorm:
    """One of their norms for one of ours. Book: evolution"""
    if not isinstance(norm, LayerNorm) or norm.bias is None:
        raise ConfigError(f"nn.Transformer's layers have LayerNorm with a bias, not {norm}")
    return nn.LayerNorm(norm.weight.shape[0], eps=norm.eps)
