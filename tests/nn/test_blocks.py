"""Blocks and stacks: where the norm stands, what is recomputed, what a cache may be."""

from functools import partial

import pytest
import torch
from glassformer.errors import CacheError, ConfigError, ShapeError
from glassformer.kv_cache import CrossCache, GrowingCache
from glassformer.nn import (
    Block,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    Stack,
    init_weights,
)
from support.core import scramble
from torch import nn
from torch.testing import assert_close

B, T, S, D, H = 2, 5, 7, 30, 3


def make_block(norm_position="pre", *, cross=False, dropout=0.0):
    return Block(
        MultiHeadAttention(D, H, dropout=dropout),
        FeedForward(D, 37, dropout=dropout),
        make_norm=partial(LayerNorm, D),
        cross_attn=MultiHeadAttention(D, H, dropout=dropout) if cross else None,
        norm_position=norm_position,
        dropout=dropout,
    )


def make_stack(n_layers=3, **options):
    norm = LayerNorm(D) if options.get("norm_position", "pre") == "pre" else None
    return Stack([make_block(**options) for _ in range(n_layers)], norm)


@pytest.mark.parametrize("cross", [False, True])
def test_pre_norm_formula(cross):
    block = scramble(make_block("pre", cross=cross)).double()
    x, memory = torch.randn(B, T, D).double(), torch.randn(B, S, D).double()
    want = x + block.self_attn(block.self_attn_norm(x), is_causal=True)
    if cross:
        want = want + block.cross_attn(block.cross_attn_norm(want), memory=memory)
    want = want + block.feed_forward(block.feed_forward_norm(want))
    assert_close(block(x, is_causal=True, memory=memory if cross else None), want)


@pytest.mark.parametrize("cross", [False, True])
def test_post_norm_formula(cross):
    block = scramble(make_block("post", cross=cross)).double()
    x, memory = torch.randn(B, T, D).double(), torch.randn(B, S, D).double()
    want = block.self_attn_norm(x + block.self_attn(x, is_causal=True))
    if cross:
        want = block.cross_attn_norm(want + block.cross_attn(want, memory=memory))
    want = block.feed_forward_norm(want + block.feed_forward(want))
    assert_close(block(x, is_causal=True, memory=memory if cross else None), want)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_T13_output_is_normalised_exactly_once(norm_position):
    """A pre-norm stack needs a closing norm, a post-norm stack already ends in one."""
    stack = make_stack(6, norm_position=norm_position)
    init_weights(stack)
    out = stack(torch.randn(B, T, D) * 9 + 4)
    assert_close(out.mean(-1), torch.zeros(B, T), atol=1e-5, rtol=0)
    assert_close(out.var(-1, correction=0), torch.ones(B, T), atol=1e-3, rtol=0)
    order = []
    for module in stack.modules():
        if isinstance(module, (LayerNorm, RMSNorm)):
            module.register_forward_hook(lambda module, args, out: order.append(module))
    stack(torch.randn(B, T, D))
    last = stack.norm if norm_position == "pre" else stack.blocks[-1].feed_forward_norm
    assert order[-1] is last
    assert len(order) == 2 * 6 + (norm_position == "pre")


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_dropout_falls_on_every_sublayer_before_it_is_added(norm_position):
    block = make_block(norm_position, cross=True, dropout=0.5)
    dropped = []
    block.dropout.register_forward_hook(lambda module, args, out: dropped.append(args[0].shape))
    block(torch.randn(B, T, D), memory=torch.randn(B, S, D))
    assert dropped == [(B, T, D)] * 3


def test_initialisation_shrinks_what_writes_to_a_pre_norm_stream():
    torch.manual_seed(1)
    pre = make_stack(8, norm_position="pre", cross=True)
    init_weights(pre)
    torch.manual_seed(1)
    post = make_stack(8, norm_position="post", cross=True)
    init_weights(post)
    shrunk = {"self_attn.o_proj", "cross_attn.o_proj", "feed_forward.down_proj"}
    for name, layer in pre.blocks.named_modules():
        if isinstance(layer, nn.Linear):
            same = post.blocks.get_submodule(name).weight
            factor = 4.0 if name.split(".", 1)[1] in shrunk else 1.0
            assert_close(layer.weight * factor, same)


class TestCheckpointedBlocks:
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_same_output_and_gradients(self, dropout):
        stack = scramble(make_stack(cross=True, dropout=dropout))
        x, memory = torch.randn(B, T, D, requires_grad=True), torch.randn(B, S, D)
        results = []
        for stack.checkpoint_blocks in (False, True):
            stack.zero_grad()
            torch.manual_seed(5)
            out = stack(x, is_causal=True, memory=memory)
            out.square().sum().backward()
            results.append([out, x.grad.clone(), *(p.grad.clone() for p in stack.parameters())])
            x.grad = None
        for plain, again in zip(*results, strict=True):
            assert_close(again, plain, atol=1e-4, rtol=1e-5)

    def test_input_without_gradient_still_trains(self):
        """O14's sibling: the re-entrant form would train nothing when the embedding is frozen."""
        stack = make_stack()
        stack.checkpoint_blocks = True
        stack(torch.randn(B, T, D)).square().sum().backward()
        assert all(p.grad is not None for p in stack.parameters())

    @pytest.mark.parametrize("cache", [GrowingCache(3), CrossCache(3)])
    def test_no_cache_in_training(self, cache):
        """O14: a recomputed block would add its keys twice."""
        stack = make_stack(cross=True)
        stack.checkpoint_blocks = True
        name = "cache" if isinstance(cache, GrowingCache) else "cross_cache"
        options = {"memory": torch.randn(B, S, D), name: cache}
        with pytest.raises(CacheError, match="fill the cache twice"):
            stack(torch.randn(B, T, D), **options)
        assert cache.bytes == 0
        with torch.no_grad():
            stack(torch.randn(B, T, D), **options)
        assert cache.bytes > 0


class TestErrors:
    def test_block_that_listens_to_an_encoder_needs_a_memory(self):
        """It would listen to itself otherwise, future positions included."""
        with pytest.raises(ShapeError, match="needs its output: give memory"):
            make_block(cross=True)(torch.randn(B, T, D), is_causal=True)

    @pytest.mark.usefixtures("no_shape_checks")
    def test_unknown_norm_position(self):
        with pytest.raises(ConfigError, match=r"norm_position='sandwich' is unknown.*pre or post"):
            make_block("sandwich")

    @pytest.mark.parametrize("n_layers", [2, 4])
    def test_cache_of_another_depth(self, n_layers):
        stack = make_stack(3, cross=True)
        x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
        message = f"a cache of {n_layers} layers does not fit 3 blocks"
        with pytest.raises(CacheError, match=message):
            stack(x, memory=memory, cache=GrowingCache(n_layers))
        with pytest.raises(CacheError, match=message):
            stack(x, memory=memory, cross_cache=CrossCache(n_layers))


def test_E09_length_is_counted_once_after_all_layers():
    """The first layer must not shift the positions of the next ones."""
    stack = make_stack(3)
    cache = GrowingCache(3)
    lengths = []
    for block in stack.blocks:
        block.register_forward_pre_hook(lambda module, args: lengths.append(cache.length))
    stack(torch.randn(B, T, D), is_causal=True, cache=cache)
    assert lengths == [0, 0, 0]
    assert cache.length == T
    stack(torch.randn(B, 1, D), cache=cache)
    assert lengths[3:] == [T, T, T]


class TestLayerDrop:
    def stack(self, layer_drop):
        blocks = [make_block() for _ in range(5)]
        return scramble(Stack(blocks, LayerNorm(D), layer_drop=layer_drop))

    def test_evaluation_runs_every_layer(self):
        stack, x = self.stack(0.9).eval(), torch.randn(B, T, D)
        whole = stack(x)
        stack.layer_drop = 0.0
        assert torch.equal(stack(x), whole)

    def test_training_skips_whole_layers_at_the_given_rate(self):
        stack, x = self.stack(0.25), torch.randn(B, T, D)
        ran = []
        for block in stack.blocks:
            block.register_forward_hook(lambda *_: ran.append(1))
        for _ in range(200):
            stack(x)
        assert sum(ran) / (200 * 5) == pytest.approx(0.75, abs=0.05)

    def test_a_skipped_layer_hands_on_its_input(self):
        stack, x = self.stack(0.999999), torch.randn(B, T, D)
        assert torch.equal(stack(x), stack.norm(x))

    def test_it_refuses_a_cache_that_would_have_gaps(self):
        stack, x = self.stack(0.5), torch.randn(B, T, D)
        with pytest.raises(CacheError, match=r"layer_drop=0.5 skips blocks .* call model.eval"):
            stack(x, cache=GrowingCache(5))
        stack.eval()(x, cache=GrowingCache(5))
