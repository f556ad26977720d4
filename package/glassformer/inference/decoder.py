"""A trained decoder prepared once, so that every further token costs as little as possible.

Making one token reads every weight once and computes little, so the reading decides. Prepared
weights lie in memory as the fastest product of this machine reads them; queries, keys and values
come from one product; keys and values go into buffers with room to spare; and a step is a few
plain functions instead of a hundred modules.

Book: kv_cache
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import CacheError, ConfigError
from glassformer.functional.attention import attend
from glassformer.functional.positions import sinusoidal_positions
from glassformer.inference._cache import RoomyCache
from glassformer.inference._products import Map, packed_linear
from glassformer.kv_cache import KVCache, LayerCache
from glassformer.models import Decoder
from glassformer.models._parts import Pass, cache_length, causal_pass, check_tokens, make_cache
from glassformer.nn import Block, FeedForward, LayerNorm

__all__ = ["PreparedDecoder", "prepare"]

M = TypeVar("M", bound=nn.Module | None)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def prepare(
    model: Decoder, *, dtype: torch.dtype = torch.float32, batch_size: int = 1
) -> "PreparedDecoder":
    """A copy of ``model`` that writes the same text faster; use it wherever the model writes.

    ``generate(prepare(model), prompt, max_new_tokens=64)`` is all it takes. In float32 the logits
    are the model's own up to rounding (1e-5 of their size). With 16-bit weights a step reads half
    the bytes; on the CPU the stream, the cache and the norms stay in float32. A change of
    ``model`` afterwards does not reach the copy.

    Args:
        model: a trained decoder. The copy stays on its device.
        dtype: of the weights: float32, bfloat16 (up to about 2e-2 of the size of the logits) or
            float16 (about 2e-3). On other devices than the CPU the stream has it too.
        batch_size: rows that will mostly be written together; any number works.

    Raises:
        ConfigError: another dtype, or a model with a part that is unknown here.

    Source: Pope et al. 2023, section 2, for what a step costs. Book: kv_cache
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype} may be {', '.join(str(d) for d in DTYPES)}")
    return PreparedDecoder(model, dtype=dtype, batch_size=batch_size)


class PreparedDecoder(Decoder):
    """What :func:`prepare` makes: a :class:`glassformer.Decoder` without parameters to train.

    Book: kv_cache
    """

    table: Tensor

    @torch.no_grad()
    def __init__(self, model: Decoder, *, dtype: torch.dtype, batch_size: int) -> None:
        nn.Module.__init__(self)
        self.config = model.config
        linear = partial(packed_linear, dtype=dtype, rows=batch_size)
        embedding, device = model.embedding, model.head_weight.device
        self.stream = torch.float32 if device.type == "cpu" else dtype
        self.register_buffer("table", (embedding.tokens.weight * embedding.scale).to(dtype))
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
        self._relative = _frozen(stack.relative, self.stream)
        self._blocks = [_make_block(block, linear, self.stream) for block in stack.blocks]
        self._norm = _norm(stack.norm, self.stream)
        self._head = linear(model.head_weight, model.head_bias)

    def hidden(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        token_mask: Bool[Tensor, "batch k_len"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """The stream before the output head. Arguments are those of ``Decoder.forward``."""
        q_len = tokens.shape[1]
        check_tokens(tokens, self.config, cached=cache_length(cache))
        step = causal_pass(tokens, token_mask, cache, self.config.sliding_window)
        bias = None
        if self._relative is not None:
            start, k_len = (0, q_len) if cache is None else (cache.position, cache.k_len(q_len))
            bias = self._relative(q_len, k_len, offset=start)
        x = F.embedding(tokens, self.table).to(self.stream)
        if self._places is not None:
            x = x + self._places[step.positions]
        turns = None
        if self._turns is not None:
            cos, sin = (table[step.positions] for table in self._turns)
            turns = (cos, sin) if cos.ndim == 2 else (cos[:, None], sin[:, None])
        layers: Sequence[LayerCache | None] = [None] * len(self._blocks)
        if cache is not None:
            layers = cache.layers
            if len(layers) != len(self._blocks):
                raise CacheError(
                    f"a cache of {len(layers)} layers does not fit {len(self._blocks)} blocks; "
                    "make one with this model's new_cache()"
                )
        for block, layer in zip(self._blocks, layers, strict=True):
            x = _through(block, x, step, bias, turns, layer)
        if cache is not None:
            cache.advance(q_len)
        return self._norm(x)

    def head(self, hidden: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab_size"]:
        """Logits of a hidden state."""
        return self._head(hidden)

    @property
    def head_weight(self) -> Float[Tensor, "vocab_size d_model"]:
        """The matrix of the output head is packed: only :meth:`head` can read it."""
        raise ConfigError(
            "a prepared decoder has no head_weight of its own; call head(hidden), or take the "
            "matrix from the model that it was made of"
        )

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """Packed weights are not for saving; they fit one machine and one dtype."""
        raise ConfigError("a prepared decoder cannot be saved; save the model that it was made of")

    def _apply(self, *args: Any, **keywords: Any) -> "PreparedDecoder":
        raise ConfigError(
            "a prepared decoder cannot move or change its dtype; move the model, then prepare it"
        )

    def new_cache(
        self, *, static: bool = False, batch_size: int | None = None, max_len: int | None = None
    ) -> KVCache:
        """An empty cache; arguments are those of ``Decoder.new_cache``.

        Without ``static`` its buffers have room to spare and double when that is used up.
        """
        if not static:
            return RoomyCache(len(self._blocks))
        example = self.table.new_empty(0, dtype=self.stream)
        return make_cache(self.config, example, static=True, batch_size=batch_size, max_len=max_len)


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


def _through(
    block: _Block,
    x: Tensor,
    step: Pass,
    bias: Tensor | None,
    turns: tuple[Tensor, Tensor] | None,
    layer: LayerCache | None,
) -> Tensor:
    """The stream after one layer."""
    if block.pre_norm:
        x = x + _listen(block, block.self_norm(x), step, bias, turns, layer)
        return x + block.feed_forward(block.feed_norm(x))
    x = block.self_norm(x + _listen(block, x, step, bias, turns, layer))
    return block.feed_norm(x + block.feed_forward(x))


def _listen(
    block: _Block,
    x: Tensor,
    step: Pass,
    bias: Tensor | None,
    turns: tuple[Tensor, Tensor] | None,
    layer: LayerCache | None,
) -> Tensor:
    """Self-attention."""
    (n_heads, n_kv), (batch, q_len, _) = block.heads, x.shape
    if not n_heads:  # pruned altogether: what is left is the bias of the output
        return block.out(x)
    heads = block.qkv(x).view(batch, q_len, n_heads + 2 * n_kv, -1).transpose(1, 2)
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
    if q_len > 1 or bias is not None:
        context = attend(q, k, v, mask=step.mask, bias=bias, is_causal=step.is_causal)
        return block.out(context.transpose(1, 2).flatten(2))
    # Without neighbours in time, the queries that share a key head can stand in their place.
    q = q.reshape(batch, n_kv, n_heads // n_kv, -1)
    if step.mask is None:
        context = F.scaled_dot_product_attention(q, k, v)
    else:
        context = attend(q, k, v, mask=step.mask)
    return block.out(context.reshape(batch, 1, -1))


def _make_block(block: nn.Module, linear: Callable[..., Map], stream: torch.dtype) -> _Block:
    if not isinstance(block, Block) or block.cross_attn is not None:
        raise ConfigError(f"prepare knows no {type(block).__name__}; give a plain decoder")
    attn = block.self_attn
    qkv = (attn.q_proj, attn.k_proj, attn.v_proj)
    return _Block(
        self_norm=_norm(block.self_attn_norm, stream),
        qkv=linear(*_stacked(*qkv)) if attn.heads else _only_bias(None),
        out=linear(*_stacked(attn.o_proj)) if attn.heads else _only_bias(attn.o_proj.bias),
        heads=(attn.n_heads, attn.n_kv_heads),
        numbers=list(attn.heads),
        feed_norm=_norm(block.feed_forward_norm, stream),
        feed_forward=_feed_forward(block.feed_forward, linear, stream),
        pre_norm=block.pre_norm,
    )


def _only_bias(bias: Tensor | None) -> Map:
    def same_for_all(x: Tensor) -> Tensor:
        return torch.zeros_like(x) if bias is None else bias.detach().to(x.dtype).expand_as(x)

    return same_for_all


def _feed_forward(module: nn.Module, linear: Callable[..., Map], stream: torch.dtype) -> Map:
    if not isinstance(module, FeedForward):  # a mixture of experts, say: as it is
        return _frozen(module, stream)
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
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if len(plain) < len(layers):
        raise ConfigError(
            f"prepare packs plain linear layers and met {[type(x).__name__ for x in layers]}; "
            "merge adapters or undo the quantization first"
        )
    weight = torch.cat([layer.weight for layer in plain])
    if all(layer.bias is None for layer in plain):
        return weight, None
    zero = weight.new_zeros
    return weight, torch.cat([zero(len(x.weight)) if x.bias is None else x.bias for x in plain])


def _norm(module: nn.Module | None, stream: torch.dtype) -> Map:
    if module is None:
        return lambda x: x
    module = _frozen(module, stream)
    if not isinstance(module, LayerNorm):
        return module.forward
    shape, weight, bias, eps = module.weight.shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _frozen(module: M, stream: torch.dtype) -> M:
    """A copy of a module for evaluation, or the None that was given."""
    if module is None:
        return module
    return copy.deepcopy(module).to(stream).eval().requires_grad_(False)
