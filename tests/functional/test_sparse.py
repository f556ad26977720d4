"""Attention to few keys: exactly the best ones, and nothing else changes."""

import math

import pytest
import torch
from glassformer import attend, attention_weights
from glassformer.errors import ConfigError, ShapeError
from glassformer.functional import keep_top_weights, padding_mask, top_k_attention
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close


def qkv(q_len=5, k_len=7, n_heads=6, n_kv=3):
    q, k = torch.randn(2, n_heads, q_len, 4), torch.randn(2, n_kv, k_len, 4)
    v = torch.randn(2, n_kv, k_len, 3)
    return [x.double().requires_grad_() for x in (q, k, v)]


def by_loops(q, k, v, top_k, mask):
    """One query at a time, over the keys with the best scores."""
    q, k, v = q.detach(), k.detach(), v.detach()
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                seen = mask[b, h, t].nonzero()[:, 0].tolist()
                scores = {s: float(q[b, h, t] @ k[b, h // group, s]) / 2 for s in seen}
                best = sorted(scores, key=scores.get, reverse=True)[:top_k]
                total = sum(math.exp(scores[s]) for s in best)
                for s in best:
                    out[b, h, t] += math.exp(scores[s]) / total * v[b, h // group, s]
    return out


@pytest.mark.parametrize("top_k", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["open", "causal", "padded"])
def test_equals_a_loop_over_the_best_keys(top_k, kind):
    q, k, v = qkv()
    options = {}
    mask = torch.ones(2, 6, 5, 7, dtype=torch.bool)
    if kind == "causal":
        options["is_causal"] = True
        mask = mask.tril(2)
    if kind == "padded":
        real = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()
        options["mask"] = padding_mask(real)
        mask = mask & options["mask"]
    got = top_k_attention(q, k, v, top_k=top_k, **options)
    assert_close(got, by_loops(q, k, v, top_k, mask))
    if kind == "padded":  # the second row sees nothing
        assert (got[1] == 0).all()
    gradients = torch.autograd.grad(got.square().sum(), (q, k, v))
    assert all(g.isfinite().all() for g in gradients)


@given(st.integers(1, 9), st.integers(0, 99))
def test_never_more_than_k_and_rows_sum_to_one(top_k, seed):
    torch.manual_seed(seed)
    weights = (3 * torch.randn(2, 3, 5, 7)).softmax(-1)
    kept = keep_top_weights(weights, top_k)
    assert ((kept > 0).sum(-1) == min(top_k, 7)).all()
    assert_close(kept.sum(-1), torch.ones(2, 3, 5))
    dropped = weights.masked_fill(kept > 0, 0.0).amax(-1)
    assert (weights.masked_fill(kept == 0, 1.0).amin(-1) >= dropped).all()


def test_ties_leave_exactly_k():
    kept = keep_top_weights(torch.full((1, 1, 2, 5), 0.2), 3)
    assert kept.sort(-1).values[0, 0].tolist() == [[0, 0, *[pytest.approx(1 / 3)] * 3]] * 2


def test_k_beyond_the_keys_is_plain_attention():
    q, k, v = qkv()
    want = attend(q, k, v, is_causal=True)
    for top_k in (7, 100):
        assert_close(top_k_attention(q, k, v, top_k=top_k, is_causal=True), want)
    assert (top_k_attention(q, k, v, top_k=6) - attend(q, k, v)).abs().max() > 1e-6


def test_one_key_is_a_lookup():
    q, k, v = qkv(n_heads=3)
    best = attention_weights(q, k).argmax(-1)
    want = v.gather(2, best[..., None].expand(-1, -1, -1, 3))
    assert_close(top_k_attention(q, k, v, top_k=1), want)


def test_bias_and_scale_take_part_in_the_choice():
    q, k, v = qkv(n_heads=3)
    bias = torch.zeros(5, 7, dtype=torch.double)
    bias[:, 4] = 1000.0
    got = top_k_attention(q, k, v, top_k=1, bias=bias, scale=0.1)
    assert_close(got, v[:, :, 4:5].expand_as(got))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    q, k, v = qkv()
    got = top_k_attention(*(x.detach().to(dtype) for x in (q, k, v)), top_k=7, is_causal=True)
    want = top_k_attention(q, k, v, top_k=7, is_causal=True)
    assert got.dtype == dtype
    assert_close(got.double(), want, atol=0.05, rtol=0)
    weights = torch.rand(1, 2, 3, 7).softmax(-1).to(dtype)
    assert_close(
        keep_top_weights(weights, 2).float().sum(-1), torch.ones(1, 2, 3), atol=0.01, rtol=0
    )


def test_what_is_refused(no_shape_checks):
    q, k, v = qkv()
    with pytest.raises(ConfigError, match="top_k=0 must be at least 1"):
        top_k_attention(q, k, v, top_k=0)
    with pytest.raises(ShapeError, match="every key needs"):
        top_k_attention(q, k, v[:, :, :5], top_k=2)
