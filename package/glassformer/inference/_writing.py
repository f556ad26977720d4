"""The decoder of a model as a few plain functions, each with what it needs close at hand.

Book: kv_cache
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.errors import CacheError, ConfigError, ShapeError
from glassformer.functional.attention import attend
from glassformer.functional.positions import sinusoidal_positions
from glassformer.inference._products import Map, frozen, packed_linear, packed_norm
from glassformer.kv_cache import CrossCache, CrossLayerCache, KVCache, LayerCache
from glassformer.models import Decoder, EncoderDecoder
from glassformer.models._parts import Pass
from glassformer.nn import Block, FeedForward, MultiHeadAttention

__all__ = ["Writing"]

QUANTIZED = "__tensor_flatten__"  # what a weight of torchao's has and a plain one has not
Linear = Callable[[Tensor, Tensor | None], Map]


class Writing:
    """Embedding, blocks and output layer of the side that writes.

    Args:
        model: whose weights are copied.
        dtype: of the weights.
        rows: rows that will mostly be written together.

    Book: kv_cache
    """

    def __init__(self, model: Decoder | EncoderDecoder, dtype: torch.dtype, rows: int) -> None:
        linear: Linear = partial(packed_linear, dtype=dtype, rows=rows)
        embedding, device = model.embedding, model.head_weight.device
        self.stream = torch.float32 if device.type == "cpu" else dtype
        self.table = (embedding.tokens.weight * embedding.scale).to(dtype)
        everywhere = torch.arange(model.config.max_len, device=device)
        self._places: Tensor | None = None
        if embedding.sinusoidal:
            self._places = sinusoidal_positions(everywhere, model.config.d_model).to(self.stream)
        elif embedding.positions is not None:
            self._places = embedding.positions.weight.detach().to(self.stream, copy=True)
        self._turns: tuple[Tensor, Tensor] | None = None
        if model.rotary is not None:
            cos, sin = model.rotary(everywhere)
            self._turns = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        stack = model.decoder
        self._relative = frozen(stack.relative, self.stream)
        blocks = cast(Sequence[Block], stack.blocks)
        self.blocks = [_make_block(block, linear, self.stream) for block in blocks]
        self._norm = packed_norm(stack.norm, self.stream)
        self.head = linear(model.head_weight, model.head_bias)

    def run(
        self,
        tokens: Tensor,
        step: Pass,
        cache: KVCache | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cross_cache: CrossCache | None = None,
    ) -> Tensor:
        """The stream before the output layer. Arguments are those of :class:`glassformer.nn.Stack`.

        Raises:
            CacheError: a cache made for another number of layers.
        """
        x = F.embedding(tokens, self.table).to(self.stream)
        if self._places is not None:
            x = x + self._places[step.positions]
        around = _Around(step, self._bias(tokens.shape[1], cache), self._turned(step.positions))
        listened = _Memory(memory, memory_mask)
        layers, cross_layers = self._layers(cache), self._layers(cross_cache)
        for block, layer, cross_layer in zip(self.blocks, layers, cross_layers, strict=True):
            x = _through(block, x, around, layer, listened, cross_layer)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return self._norm(x)

    def _bias(self, q_len: int, cache: KVCache | None) -> Tensor | None:
        if self._relative is None:
            return None
        if cache is None:
            return self._relative(q_len, q_len)
        offset = cache.position - cache.first_key
        return self._relative(q_len, cache.k_len(q_len), offset=offset)

    def _turned(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        if self._turns is None:
            return None
        cos, sin = (table[positions] for table in self._turns)
        return (cos, sin) if cos.ndim == 2 else (cos[:, None], sin[:, None])

    def _layers(self, cache: KVCache | CrossCache | None) -> Sequence[Any]:
        if cache is None:
            return [None] * len(self.blocks)
        if len(cache.layers) != len(self.blocks):
            raise CacheError(
                f"a cache of {len(cache.layers)} layers does not fit {len(self.blocks)} blocks; "
                "make one with this model's new_cache() or new_cross_cache()"
            )
        return cache.layers


class _Around(NamedTuple):
    """What the self-attentions of all layers share."""

    step: Pass
    bias: Tensor | None
    turns: tuple[Tensor, Tensor] | None


class _Memory(NamedTuple):
    """What the cross-attentions of all layers share."""

    memory: Tensor | None
    mask: Tensor | None


class _Cross(NamedTuple):
    """Attention to a memory, as functions."""

    norm: Map
    q: Map
    kv: Map
    out: Map
    heads: tuple[int, int]


class _Block(NamedTuple):
    """What one layer does, as functions."""

    self_norm: Map
    qkv: Map
    out: Map
    heads: tuple[int, int]
    numbers: list[int]
    feed_norm: Map
    feed_forward: Map
    pre_norm: bool
    cross: _Cross | None


def _through(
    block: _Block,
    x: Tensor,
    around: _Around,
    layer: LayerCache | None,
    listened: _Memory,
    cross_layer: CrossLayerCache | None,
) -> Tensor:
    """The stream after one layer."""
    cross = block.cross
    if block.pre_norm:
        x = x + _listen(block, block.self_norm(x), around, layer)
        if cross is not None:
            x = x + _listen_to_memory(cross, cross.norm(x), listened, cross_layer)
        return x + block.feed_forward(block.feed_norm(x))
    x = block.self_norm(x + _listen(block, x, around, layer))
    if cross is not None:
        x = cross.norm(x + _listen_to_memory(cross, x, listened, cross_layer))
    return block.feed_norm(x + block.feed_forward(x))


def _listen(block: _Block, x: Tensor, around: _Around, layer: LayerCache | None) -> Tensor:
    """Self-attention."""
    (n_heads, n_kv), (batch, q_len, _) = block.heads, x.shape
    step, bias, turns = around
    if not n_heads:  # pruned altogether: what is left is the bias of the output
        return block.out(x)
    heads = block.qkv(x)
    n_all = n_heads + 2 * n_kv
    heads = heads.view(batch, q_len, n_all, heads.shape[-1] // n_all).transpose(1, 2)
    turning, v = heads[:, :-n_kv], heads[:, -n_kv:]
    if turns is not None:
        cos, sin = turns
        swapped = turning.roll(turning.shape[-1] // 2, dims=-1)
        turning = torch.addcmul(turning * cos, swapped, sin).to(v.dtype)
    q, k = turning[:, :n_heads], turning[:, n_heads:]
    if layer is not None:
        k, v = layer.update(k, v)
    if bias is not None:
        bias = bias[:, block.numbers]  # made for the heads from before pruning
    return block.out(_context(q, k, v, step.mask, bias, step.is_causal))


def _listen_to_memory(
    cross: _Cross, x: Tensor, listened: _Memory, layer: CrossLayerCache | None
) -> Tensor:
    """Cross-attention."""
    if not cross.heads[0]:
        return cross.out(x)
    q = cross.q(x).unflatten(-1, (cross.heads[0], -1)).transpose(1, 2)
    if layer is not None:
        k, v = layer.fetch(partial(_project, cross), listened.memory)
    elif listened.memory is not None:
        k, v = _project(cross, listened.memory)
    else:
        raise ShapeError("this model listens to an encoder, so it needs its output: give memory")
    return cross.out(_context(q, k, v, listened.mask, None, False))


def _project(cross: _Cross, memory: Tensor) -> tuple[Tensor, Tensor]:
    k, v = cross.kv(memory).unflatten(-1, (2, cross.heads[1], -1)).transpose(1, 3).unbind(2)
    return k, v


def _context(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, is_causal: bool
) -> Tensor:
    """Attention of all heads, side by side again: (B, T, H * E)."""
    batch, n_heads, q_len, d_head = q.shape
    if q_len != 1 or bias is not None:
        context = attend(q, k, v, mask=mask, bias=bias, is_causal=is_causal)
        return context.transpose(1, 2).flatten(2)
    # Without neighbours in time, the queries that share a key head can stand in their place.
    q = q.reshape(batch, k.shape[1], n_heads // k.shape[1], d_head)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v).reshape(batch, 1, n_heads * d_head)
    return attend(q, k, v, mask=mask).reshape(batch, 1, n_heads * d_head)


def _make_block(block: Block, linear: Linear, stream: torch.dtype) -> _Block:
    attn, cross = block.self_attn, None
    if block.cross_attn is not None:
        other = block.cross_attn
        cross = _Cross(
            norm=packed_norm(block.cross_attn_norm, stream),
            q=_product(other, linear, other.q_proj),
            kv=_product(other, linear, other.k_proj, other.v_proj),
            out=_output(other, linear),
            heads=(other.n_heads, other.n_kv_heads),
        )
    return _Block(
        self_norm=packed_norm(block.self_attn_norm, stream),
        qkv=_product(attn, linear, attn.q_proj, attn.k_proj, attn.v_proj),
        out=_output(attn, linear),
        heads=(attn.n_heads, attn.n_kv_heads),
        numbers=list(attn.heads),
        feed_norm=packed_norm(block.feed_forward_norm, stream),
        feed_forward=_feed_forward(block.feed_forward, linear, stream),
        pre_norm=block.pre_norm,
        cross=cross,
    )


def _product(attn: MultiHeadAttention, linear: Linear, *layers: nn.Module) -> Map:
    return linear(*_stacked(*layers)) if attn.heads else _only_bias(None)


def _output(attn: MultiHeadAttention, linear: Linear) -> Map:
    return linear(*_stacked(attn.o_proj)) if attn.heads else _only_bias(attn.o_proj.bias)


def _only_bias(bias: Tensor | None) -> Map:
    def same_for_all(x: Tensor) -> Tensor:
        return torch.zeros_like(x) if bias is None else bias.detach().to(x.dtype).expand_as(x)

    return same_for_all


def _feed_forward(module: nn.Module, linear: Linear, stream: torch.dtype) -> Map:
    if not isinstance(module, FeedForward):  # a mixture of experts, say: as it is
        return frozen(module, stream)
    act, down = module.act, linear(*_stacked(module.down_proj))
    if module.gate_proj is None:
        up = linear(*_stacked(module.up_proj))
        return lambda x: down(act(up(x)))
    both = linear(*_stacked(module.gate_proj, module.up_proj))

    def gated(x: Tensor) -> Tensor:
        gate, value = both(x).chunk(2, dim=-1)
        return down(act(gate) * value)

    return gated


def _stacked(*layers: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers with one input, as if they were one layer."""
    plain = [x for x in layers if type(x) is nn.Linear and not hasattr(x.weight, QUANTIZED)]
    if len(plain) < len(layers):
        met = [type(x.weight if type(x) is nn.Linear else x).__name__ for x in layers]
        raise ConfigError(
            f"prepare packs plain linear layers and met {met}; merge adapters or undo the "
            "quantization first"
        )
    weight = torch.cat([layer.weight for layer in plain])
    if all(layer.bias is None for layer in plain):
        return weight, None
    zero = weight.new_zeros
    return weight, torch.cat([zero(len(x.weight)) if x.bias is None else x.bias for x in plain])
