"""Multi-head attention: its parts, its two paths, its groups, its memory."""

import einops
import pytest
import torch
from glassformer.errors import CacheError, ConfigError
from glassformer.functional import attend
from glassformer.kv_cache import CrossLayerCache, GrowingCache
from glassformer.nn import MultiHeadAttention, Rotary, merge_heads, split_heads
from support.core import as_mask, scramble
from torch.testing import assert_close

B, T, S, D, H, K = 2, 5, 7, 30, 6, 3


def make(n_kv_heads=K, dtype=torch.float64, **options):
    attention = MultiHeadAttention(D, H, n_kv_heads=n_kv_heads, **options)
    return scramble(attention).to(dtype).eval()


def x_and_memory(dtype=torch.float64):
    return torch.randn(B, T, D, dtype=dtype), torch.randn(B, S, D, dtype=dtype)


def test_split_and_merge_heads():
    x = torch.randn(B, T, D)
    heads = split_heads(x, H)
    assert torch.equal(heads, einops.rearrange(x, "b t (h e) -> b h t e", h=H))
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("bias", [True, False])
def test_is_project_attend_project(bias):
    attention = make(bias=bias)
    x, _ = x_and_memory()

    def project(layer, x):
        return x @ layer.weight.T + (layer.bias if bias else 0)

    q, k, v = (project(getattr(attention, f"{name}_proj"), x) for name in "qkv")
    q = einops.rearrange(q, "b t (h e) -> b h t e", h=H)
    k, v = (einops.rearrange(y, "b t (h e) -> b h t e", h=K) for y in (k, v))
    context = einops.rearrange(attend(q, k, v, is_causal=True), "b h t e -> b t (h e)")
    assert_close(attention(x, is_causal=True), project(attention.o_proj, context))
    assert (attention.q_proj.bias is not None) == bias


def test_groups_equal_full_heads_with_repeated_keys():
    grouped = make()
    full = make(n_kv_heads=None)
    weights = grouped.state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            heads = weights[f"{name}.{part}"].unflatten(0, (K, -1))
            weights[f"{name}.{part}"] = heads.repeat_interleave(H // K, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    x, _ = x_and_memory()
    assert_close(grouped(x), full(x))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n_kv_heads", [None, K, 1])
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "memory"])
def test_eager_equals_fused(training, n_kv_heads, case):
    attention = make(n_kv_heads, dropout=0.3).train(training)
    x, memory = x_and_memory()
    x.requires_grad_()
    options = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"mask": (torch.rand(B, 1, T, T) < 0.6), "is_causal": True},
        "memory": {"memory": memory, "mask": torch.rand(B, 1, 1, S) < 0.6},
    }[case]
    results = []
    for attention.eager in (False, True):
        torch.manual_seed(3)
        out = attention(x, **options)
        attention.zero_grad()
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        results.append((out, grad))
    for fused, eager in zip(*results, strict=True):
        assert_close(eager, fused, atol=1e-9, rtol=1e-9)


def test_M03_asking_for_weights_changes_nothing():
    """A blind row is finite with and without weights."""
    attention = make(dtype=torch.float32)
    x, _ = x_and_memory(torch.float32)
    mask = torch.ones(B, H, T, T, dtype=torch.bool)
    mask[0, 2], mask[1, :, 3] = False, False
    seen = []
    fused = attention(x, mask=mask)
    attention.eager = True
    attention.weights_tap.register_forward_hook(lambda module, args, weights: seen.append(weights))
    assert_close(attention(x, mask=mask), fused, atol=1e-5, rtol=1e-5)
    assert seen[0].isfinite().all()
    assert (seen[0][1, :, 3] == 0).all()
    assert_close(seen[0][1, :, 2].sum(-1), torch.ones(H))


def test_permutation_equivariance():
    """Without positions attention does not know the order of its input."""
    attention = make()
    x, _ = x_and_memory()
    order = torch.randperm(T)
    assert_close(attention(x[:, order]), attention(x)[:, order])


def test_rotary_turns_queries_and_keys_but_no_memory():
    attention = scramble(MultiHeadAttention(D, 3).double())
    x, memory = x_and_memory()
    rotary = Rotary(D // 3)(torch.arange(T))
    assert not torch.allclose(attention(x, rotary=rotary), attention(x))
    later = Rotary(D // 3)(torch.arange(9, 9 + T))
    assert_close(attention(x, rotary=later), attention(x, rotary=rotary), atol=1e-5, rtol=0)
    assert torch.equal(attention(x, memory=memory, rotary=rotary), attention(x, memory=memory))


class TestMemory:
    def test_listens_to_the_memory_only(self):
        attention = make()
        x, memory = x_and_memory()
        out = attention(x, memory=memory)
        assert_close(out[:, 2:3], attention(x[:, 2:3], memory=memory))
        assert_close(out, attention(x, memory=memory.flip(1)))
        assert not torch.allclose(out, attention(x, memory=memory + 1))

    def test_mask_hides_the_memory(self):
        attention = make()
        x, memory = x_and_memory()
        mask = as_mask("1111...")
        out = attention(x, memory=memory, mask=mask)
        assert_close(out, attention(x, memory=memory[:, :4]))

    def test_G22_cross_cache_projects_once(self, monkeypatch):
        attention = make()
        x, memory = x_and_memory()
        want = attention(x, memory=memory)
        calls = []
        project = attention.project_kv
        monkeypatch.setattr(attention, "project_kv", lambda m: calls.append(1) or project(m))
        cache = CrossLayerCache()
        for t in range(T):
            got = attention(x[:, t : t + 1], memory=memory, cross_cache=cache)
            assert_close(got, want[:, t : t + 1])
            assert cache.kv[0].shape == (B, K, S, D // H)
        assert_close(attention(x, cross_cache=cache), want)  # the memory is no longer needed
        assert len(calls) == 1

    def test_empty_cross_cache_without_memory(self):
        x, _ = x_and_memory()
        with pytest.raises(CacheError, match=r"cross cache is empty.*needed once"):
            make()(x, cross_cache=CrossLayerCache())

    def test_cross_cache_of_another_source(self):
        attention = make()
        x, memory = x_and_memory()
        cache = CrossLayerCache()
        attention(x, memory=memory, cross_cache=cache)
        with pytest.raises(CacheError, match=r"2 sources of 7 tokens and was given 2 of 6.*reset"):
            attention(x, memory=memory[:, 1:], cross_cache=cache)


def test_cache_gives_back_earlier_keys():
    attention = make()
    x, _ = x_and_memory()
    cache = GrowingCache(1)
    want = attention(x, is_causal=True)
    for start, stop in ((0, 2), (2, 3), (3, T)):
        got = attention(x[:, start:stop], is_causal=True, cache=cache.layers[0])
        cache.advance(stop - start)
        assert_close(got, want[:, start:stop])


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "message"),
    [
        (7, None, "n_heads=7 must divide d_model=30; try n_heads=5 or 6"),
        (6, 4, "n_kv_heads=4 must divide n_heads=6; it may be 1, 2, 3, 6"),
        (0, None, "n_heads=0 must be a whole number of at least 1"),
        (6, 0, "n_kv_heads=0 must be a whole number of at least 1"),
    ],
)
def test_sizes_that_do_not_divide(n_heads, n_kv_heads, message):
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(D, n_heads, n_kv_heads=n_kv_heads)


def test_dropout_in_training_only():
    attention = make(dropout=0.5)
    x, _ = x_and_memory()
    assert torch.equal(attention(x), attention(x))
    attention.train()
    assert not torch.equal(attention(x), attention(x))


def test_repr():
    assert "n_heads=6, n_kv_heads=3, dropout=0.0" in repr(make())
    assert repr(Rotary(10, base=5e5)) == "Rotary(d_head=10, base=500000)"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_P05_a_cast_of_the_rotary_module_spoils_nothing(dtype):
    """It has nothing to save and nothing to cast."""
    rotary = Rotary(32)
    assert not rotary.state_dict()
    want = rotary(torch.arange(2048))
    got = rotary.to(dtype)(torch.arange(2048))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert want[0].dtype == torch.float32


def test_heads_may_have_a_width_of_their_own():
    attention = scramble(MultiHeadAttention(D, 7, n_kv_heads=1, d_head=4)).eval()
    assert attention.q_proj.weight.shape == (28, D)
    assert attention.k_proj.weight.shape == (4, D)
    assert attention.o_proj.weight.shape == (D, 28)
    x = torch.randn(B, T, D)
    q = split_heads(attention.q_proj(x), 7)
    k, v = split_heads(attention.k_proj(x), 1), split_heads(attention.v_proj(x), 1)
    assert_close(attention(x), attention.o_proj(merge_heads(attend(q, k, v, scale=0.5))))


def test_queries_keys_and_values_may_have_the_only_biases():
    attention = MultiHeadAttention(D, H, bias=False, qkv_bias=True)
    assert all(getattr(attention, f"{name}_proj").bias is not None for name in "qkv")
    assert attention.o_proj.bias is None


@pytest.mark.parametrize("eager", [False, True])
def test_a_bias_is_added_to_the_scores(eager):
    attention = make()
    attention.eager = eager
    x, _ = x_and_memory()
    bias = torch.zeros(1, H, T, T, dtype=x.dtype)
    bias[..., 0] = 1e4  # everybody listens to the first position
    values = merge_heads(attention.project_kv(x)[1].repeat_interleave(H // K, dim=1))
    want = attention.o_proj(values[:, :1]).expand_as(x)
    assert_close(attention(x, bias=bias), want)
