"""A whole model that listens to few keys: as the function says, and as before afterwards."""

import pytest
import torch
from glassformer.errors import ConfigError, GlassformerError
from glassformer.evaluation import evaluate_nll
from glassformer.functional import top_k_attention
from glassformer.introspect import capture_attention
from glassformer.nn import MultiHeadAttention, split_heads
from glassformer.pruning import sparse_attention
from glassformer.training import Batch, batch_loss
from support.core import decoder_config, ids, scrambled, translator_config
from torch import nn
from torch.testing import assert_close


def hooks(model):
    return sum(len(m._forward_hooks) for m in model.modules())


def test_an_attention_equals_the_function():
    attention = MultiHeadAttention(12, 3).eval()
    x = torch.randn(2, 7, 12)
    q, k, v = (split_heads(p(x), 3) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    want = top_k_attention(q, k, v, top_k=2, is_causal=True)
    with sparse_attention(attention, 2):
        got = attention(x, is_causal=True)
    assert_close(got, attention.o_proj(want.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("top_k", [1, 3])
def test_every_attention_of_a_model(top_k):
    model = scrambled(translator_config())
    with sparse_attention(model, top_k), capture_attention(model) as maps:
        model(ids(2, 7), ids(2, 5))
    assert len(maps) == 6
    for weights in maps.values():
        assert ((weights > 0).sum(-1) <= top_k).all()
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_enough_keys_change_nothing():
    model = scrambled(decoder_config(n_kv_heads=1))
    tokens = ids(2, 7)
    want = model(tokens)
    with sparse_attention(model, 7):
        assert_close(model(tokens), want, atol=1e-10, rtol=0)
    with sparse_attention(model, 6):
        assert (model(tokens) - want).abs().max() > 1e-6


def test_with_a_cache():
    model = scrambled(decoder_config())
    tokens = ids(2, 7)
    with sparse_attention(model, 3):
        want = model(tokens)
        for static in (False, True):
            cache = model.new_cache(static=static, batch_size=2)
            steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(7)]
            assert_close(torch.cat(steps, 1), want, atol=1e-5, rtol=0)


def test_quality_can_be_measured():
    model = scrambled(decoder_config())
    text = ids(1, 60)[0]
    plain = evaluate_nll(model, text, window=11).nll
    figures = []
    for top_k in (1, 2, 11):
        with sparse_attention(model, top_k):
            figures.append(evaluate_nll(model, text, window=11).nll)
    assert figures[-1] == pytest.approx(plain)
    assert len({round(figure, 6) for figure in figures}) == 3


def test_losses_are_sparse_too():
    model = scrambled(decoder_config())
    counts = torch.arange(7) < torch.tensor([7, 3])[:, None]
    batch = Batch(ids(2, 7), ids(2, 7), counts)
    with sparse_attention(model, 2):
        together = batch_loss(model, batch).total.item()
        rows = [Batch(batch.inputs[[i]], batch.targets[[i]], counts[[i]]) for i in range(2)]
        apart = sum(batch_loss(model, row).total.item() for row in rows)
    assert together == pytest.approx(apart)
    assert together != pytest.approx(batch_loss(model, batch).total.item())


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails):
    model = scrambled(decoder_config())
    model.decoder.blocks[1].self_attn.eager = True  # somebody's own choice
    try:
        with sparse_attention(model, 2):
            if fails:
                raise RuntimeError("in the middle")
    except RuntimeError:
        assert fails
    assert [block.self_attn.eager for block in model.decoder.blocks] == [False, True]
    assert hooks(model) == 0


def test_what_is_refused():
    model = scrambled(decoder_config())
    with pytest.raises(ConfigError, match="top_k=0 must be at least 1"), sparse_attention(model, 0):
        pass
    with (
        pytest.raises(GlassformerError, match="has no MultiHeadAttention"),
        sparse_attention(nn.Linear(2, 3), 2),
    ):
        pass
    assert hooks(model) == 0
