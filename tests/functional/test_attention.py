"""Attention: right numbers, one meaning of a mask, and the same answer on every path."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from glassformer import attend, attention_weights
from glassformer.errors import MaskError, ShapeError
from glassformer.functional import alibi_bias, causal_mask, padding_mask, weighted_values
from support.core import as_mask
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

B, H, K, T, S, E = 2, 6, 3, 5, 7, 11


def eager(q, k, v, **options):
    return attend(q, k, v, eager=True, **options)


def math_backend(q, k, v, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return attend(q, k, v, **options)


PATHS = pytest.mark.parametrize("path", [attend, eager, math_backend])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def qkv(n_heads=H, n_kv_heads=K, q_len=T, k_len=S, dtype=torch.float64, d_value=E):
    q = torch.randn(B, n_heads, q_len, E, dtype=dtype, requires_grad=True)
    k = torch.randn(B, n_kv_heads, k_len, E, dtype=dtype, requires_grad=True)
    v = torch.randn(B, n_kv_heads, k_len, d_value, dtype=dtype, requires_grad=True)
    return q, k, v


def in_loops(q, k, v, *, visible, bias=None, scale=None):
    """Equation 1, one number at a time. ``visible[b][h][t][s]`` is True where t may see s."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v = q.detach(), k.detach(), v.detach()
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b, h, t in itertools.product(range(q.shape[0]), range(q.shape[1]), range(q.shape[2])):
        seen = [s for s in range(k.shape[2]) if visible[b, h, t, s]]
        scores = []
        for s in seen:
            score = float(q[b, h, t] @ k[b, h // group, s]) * scale
            scores.append(score + (0.0 if bias is None else float(bias[b, h, t, s])))
        total = sum(math.exp(score) for score in scores)
        for s, score in zip(seen, scores, strict=True):
            out[b, h, t] += math.exp(score) / total * v[b, h // group, s]
    return out


def grads(out, *inputs):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weights).sum(), inputs)


@PATHS
class TestNumbers:
    def test_two_keys_by_hand(self, path):
        q = torch.tensor([[[[1.0]]]])
        k = torch.tensor([[[[math.log(1.0)], [math.log(3.0)]]]])
        v = torch.tensor([[[[4.0], [8.0]]]])
        assert_close(path(q, k, v), torch.tensor([[[[0.25 * 4 + 0.75 * 8]]]]))

    def test_equal_scores_give_the_mean_of_the_values(self, path):
        q, k, v = qkv(K, K)
        assert_close(path(torch.zeros_like(q), k, v), v.mean(2, keepdim=True).expand(-1, -1, T, -1))

    @pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
    @pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (7, 7), (7, 5), (1, 7)])
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_equals_loops(self, path, n_kv_heads, q_len, k_len, is_causal):
        q, k, v = qkv(H, n_kv_heads, q_len, k_len, d_value=13)
        mask = torch.rand(B, H, q_len, k_len) < 0.6
        bias = torch.randn(B, H, q_len, k_len, dtype=q.dtype)
        visible = mask.clone()
        if is_causal:
            for t, s in itertools.product(range(q_len), range(k_len)):
                visible[:, :, t, s] &= s <= t + k_len - q_len
        want = in_loops(q, k, v, visible=visible, bias=bias, scale=0.4)
        got = path(q, k, v, mask=mask, bias=bias, is_causal=is_causal, scale=0.4)
        assert_close(got, want, atol=1e-10, rtol=0)

    def test_default_scale_is_one_over_the_root_of_the_width(self, path):
        q, k, v = qkv()
        assert_close(path(q, k, v), path(q, k, v, scale=E**-0.5), atol=0, rtol=0)

    def test_E12_group_heads_are_neighbours(self, path):
        """Four query heads use key heads 0, 0, 1, 1."""
        q, k, v = qkv(4, 2)
        order = torch.tensor([0, 0, 1, 1])
        assert_close(path(q, k, v), path(q, k[:, order], v[:, order]), atol=1e-12, rtol=0)
        tiled = torch.tensor([0, 1, 0, 1])
        assert not torch.allclose(path(q, k, v), path(q, k[:, tiled], v[:, tiled]))

    def test_P03_large_scores_do_not_overflow(self, path):
        """Textbook softmax without subtracting the largest score is NaN here."""
        k = torch.tensor([151.3, 0.0, -5.0]).view(1, 1, 3, 1)
        q, v = torch.ones(1, 1, 1, 1), torch.eye(3).view(1, 1, 3, 3)
        want = torch.tensor([151.3, 0.0, -5.0]).softmax(-1)
        assert_close(path(q, k, v)[0, 0, 0], want)
        shift = torch.full((1, 3), 1000.0)
        assert_close(path(q, k, v, bias=shift)[0, 0, 0], want)

    def test_no_keys_at_all_give_zeros(self, path):
        q, k, v = qkv(k_len=0)
        for is_causal in (False, True):
            out = path(q, k, v, is_causal=is_causal)
            assert_close(out, torch.zeros_like(q))

    def test_no_queries_give_nothing(self, path):
        q, k, v = qkv(q_len=0)
        assert path(q, k, v, is_causal=True).shape == (B, H, 0, E)

    def test_inputs_stay_as_they_were(self, path):
        q, k, v = qkv()
        mask = torch.rand(T, S) < 0.5
        bias = torch.randn(T, S, dtype=q.dtype)
        before = [x.detach().clone() for x in (q, k, v, mask, bias)]
        path(q, k, v, mask=mask, bias=bias, is_causal=True)
        for now, then in zip((q, k, v, mask, bias), before, strict=True):
            assert torch.equal(now, then)

    def test_gradcheck(self, path):
        q, k, v = (x.detach()[:1, :, :3, :2].requires_grad_() for x in qkv(2, 1, k_len=4))
        mask = as_mask("11..", "....", "1.1.")[:, : k.shape[2]]
        bias = torch.randn(1, 2, 3, k.shape[2], dtype=q.dtype, requires_grad=True)

        def function(q, k, v, bias):
            return path(q, k, v, mask=mask, bias=bias, is_causal=True)

        assert torch.autograd.gradcheck(function, (q, k, v, bias))


@PATHS
class TestMasks:
    def test_M06_true_means_may_attend(self, path):
        """With a causal mask row 0 is value 0 and the last row depends on every value."""
        q, k, v = qkv(H, H, 3, 3)
        mask = as_mask("1..", "11.", "111")

        def check(mask):
            out = path(q, k, v, mask=mask)
            assert_close(out[:, :, 0], v[:, :, 0])
            (grad,) = torch.autograd.grad(out[:, :, 2].sum(), v)
            assert (grad.abs().sum(-1) > 0).all()

        check(mask)
        with pytest.raises(AssertionError):
            check(~mask)

    def test_M06_agrees_with_both_apis_of_pytorch(self, path):
        """The fused kernel means the same by True, nn.MultiheadAttention the opposite."""
        q, k, v = qkv(1, 1, 3, 3)
        mask = as_mask("1..", "11.", "111")
        assert_close(
            path(q, k, v, mask=mask),
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        )
        oracle = torch.nn.MultiheadAttention(E, 1, bias=False, batch_first=True).double()
        with torch.no_grad():
            oracle.in_proj_weight.copy_(torch.eye(E).repeat(3, 1))
            oracle.out_proj.weight.copy_(torch.eye(E))
        want, _ = oracle(q[:, 0], k[:, 0], v[:, 0], attn_mask=~mask)
        assert_close(path(q, k, v, mask=mask)[:, 0], want)

    @pytest.mark.parametrize(
        "shape", [(T, S), (B, H, T, S), (B, 1, 1, S), (1, H, T, S), (1, S), (B, 1, T, 1)]
    )
    def test_broadcast(self, path, shape):
        q, k, v = qkv()
        mask = torch.rand(shape) < 0.6
        want = in_loops(q, k, v, visible=mask.expand(B, H, T, S))
        assert_close(path(q, k, v, mask=mask), want, atol=1e-10, rtol=0)

    @DTYPES
    def test_M01_blind_row_gives_zeros_and_finite_gradients(self, path, dtype):
        """Not NaN, and not the average that a fill with a finite minimum gives."""
        q, k, v = qkv(k_len=T, dtype=dtype)
        mask = torch.rand(B, 1, T, T) < 0.7
        mask[..., 0] = True
        sighted = path(q, k, v, mask=mask)
        mask[0, :, 1] = False
        out = path(q, k, v, mask=mask)
        assert torch.equal(out[0, :, 1], torch.zeros(H, E, dtype=dtype))
        others = torch.ones(B, T, dtype=torch.bool)
        others[0, 1] = False
        assert_close(out.transpose(1, 2)[others], sighted.transpose(1, 2)[others])
        found = grads(out, q, k, v)
        assert all(grad.isfinite().all() for grad in found)
        assert torch.equal(found[0][0, :, 1], torch.zeros(H, E, dtype=dtype))

    def test_nothing_visible_at_all(self, path):
        q, k, v = qkv()
        out = path(q, k, v, mask=torch.zeros(T, S, dtype=torch.bool))
        assert torch.equal(out, torch.zeros_like(out))
        assert all(torch.equal(g, torch.zeros_like(g)) for g in grads(out, q, k, v))

    def test_blind_row_with_a_bias(self, path):
        q, k, v = qkv(dtype=torch.float32)
        mask = torch.ones(B, 1, T, S, dtype=torch.bool)
        mask[1, :, 2] = False
        bias = torch.randn(1, H, T, S, requires_grad=True)
        out = path(q, k, v, mask=mask, bias=bias)
        assert torch.equal(out[1, :, 2], torch.zeros(H, E))
        assert all(grad.isfinite().all() for grad in grads(out, q, k, v, bias))

    def test_M09_mask_and_causal_flag_are_anded(self, path):
        """One backend merges the two, another raises; here they are one mask."""
        q, k, v = qkv(q_len=4, k_len=4)
        padding = padding_mask(torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool())
        got = path(q, k, v, mask=padding, is_causal=True)
        merged = padding & as_mask("1...", "11..", "111.", "1111")
        assert_close(got, path(q, k, v, mask=merged), atol=0, rtol=0)
        assert_close(got, in_loops(q, k, v, visible=merged.expand(B, H, 4, 4)))

    def test_M10_one_query_sees_the_whole_cache(self, path):
        """Aligned at the top left, a lone query would see the first key only."""
        q, k, v = qkv(q_len=1, k_len=5)
        got = path(q, k, v, is_causal=True)
        assert_close(got, path(q, k, v))
        assert not torch.allclose(got[:, ::2], v[:, :, :1])

    def test_M11_causal_is_aligned_at_the_bottom_right(self, path):
        q, k, v = qkv(q_len=2, k_len=4)
        want = path(q, k, v, mask=as_mask("111.", "1111"))
        assert_close(path(q, k, v, is_causal=True), want)

    def test_M12_more_queries_than_keys(self, path):
        """The first queries stand before every key, so they get zeros."""
        q, k, v = qkv(q_len=5, k_len=2)
        got = path(q, k, v, is_causal=True)
        assert torch.equal(got[:, :, :3], torch.zeros(B, H, 3, E, dtype=q.dtype))
        assert_close(got[:, :, 3], v[:, :, 0].repeat_interleave(2, dim=1))
        assert_close(got, path(q, k, v, mask=as_mask("..", "..", "..", "1.", "11")))
        assert all(grad.isfinite().all() for grad in grads(got, q, k, v))

    def test_M08_mask_per_head_and_padding_per_sample(self, path):
        """Equal to one sample and one head at a time."""
        q, k, v = qkv(2, 2, 4, 4)
        per_head = torch.rand(1, 2, 4, 4) < 0.5
        padding = padding_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool())
        got = path(q, k, v, mask=per_head & padding)
        for b, h in itertools.product(range(B), range(2)):
            mask = per_head[0, h] & padding[b, 0, 0]
            alone = path(*(x[b : b + 1, h : h + 1] for x in (q, k, v)), mask=mask)
            assert_close(got[b, h], alone[0, 0])
        assert got.isfinite().all()

    @DTYPES
    def test_P02_padding_and_causality_hide_the_same_key(self, path, dtype):
        """Two finite minima that are added overflow; two permissions that are combined cannot."""
        q, k, v = qkv(q_len=4, k_len=4, dtype=dtype)
        mask = torch.ones(4, dtype=torch.bool).expand(B, 1, 1, 4).clone()
        mask[..., 3] = False
        poisoned = v.detach().clone()
        poisoned[:, :, 3] = 1e4
        got = path(q, k, poisoned, mask=mask, is_causal=True)
        assert got.isfinite().all()
        assert got.abs().max() < 10  # a trace of the hidden value would show
        assert_close(got[:, :, 0], v[:, :, 0].repeat_interleave(2, dim=1))


@PATHS
@DTYPES
def test_P02_a_row_of_padding_before_every_real_key(path, dtype):
    """Left padding: the first queries are hidden from every key, by padding or by causality."""
    q, k, v = qkv(q_len=4, k_len=4, dtype=dtype)
    mask = padding_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool())
    out = path(q, k, v, mask=mask, is_causal=True)
    assert out.isfinite().all()
    assert torch.equal(out[0, :, :2], torch.zeros(H, 2, E, dtype=dtype))
    assert_close(out[0, :, 2], v[0, :, 2].repeat_interleave(2, dim=0))


def test_M01_both_paths_agree_on_a_blind_row():
    q, k, v = qkv(1, 1, 3, 3, dtype=torch.float32)
    mask = as_mask("111", "...", "111")
    fused, explicit = attend(q, k, v, mask=mask), eager(q, k, v, mask=mask)
    assert_close(fused, explicit, atol=1e-6, rtol=0)
    for out in (fused, explicit):
        assert torch.equal(out[:, :, 1], torch.zeros(B, 1, E))
        assert_close(out[:, :, ::2], attend(q, k, v)[:, :, ::2], atol=1e-6, rtol=0)


@DTYPES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_eager_equals_fused_forward_and_backward(dtype, is_causal, masked, biased):
    q, k, v = qkv(dtype=dtype)
    options = {
        "mask": torch.rand(B, 1, T, S) < 0.5 if masked else None,
        "bias": alibi_bias(H, T, S) if biased else None,
        "is_causal": is_causal,
    }
    slow, fast = eager(q, k, v, **options), attend(q, k, v, **options)
    assert slow.dtype == fast.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    assert_close(fast, slow, atol=tolerance, rtol=0)
    pairs = zip(grads(fast, q, k, v), grads(slow, q, k, v), strict=True)
    for got, want in pairs:
        assert_close(got, want, atol=3 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("n_kv_heads", [H, K])
@pytest.mark.parametrize("masked", [False, True])
def test_eager_equals_fused_under_dropout(n_kv_heads, masked):
    """The same seed drops the same weights on both paths, forward and backward."""
    q, k, v = qkv(n_kv_heads=n_kv_heads, dtype=torch.float32)
    mask = torch.rand(B, 1, T, S) < 0.7 if masked else None
    results = []
    for path in (attend, eager):
        torch.manual_seed(7)
        out = path(q, k, v, mask=mask, dropout=0.4)
        results.append((out, *grads(out, q, k, v)))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(results[0][0], attend(q, k, v, mask=mask))


@PATHS
def test_dropout_keeps_the_mean(path):
    q, k, v = torch.zeros(1, 1, 997, 1), torch.zeros(1, 1, 101, 1), torch.ones(1, 1, 101, 1)
    out = path(q, k, v, dropout=0.3)
    assert out.mean() == pytest.approx(1.0, abs=0.01)
    assert out.std() > 0.01


class TestWeights:
    @DTYPES
    def test_P01_hidden_key_weighs_exactly_nothing(self, dtype):
        """A constant such as -1e9 cannot be stored in float16."""
        q, k, _ = qkv(dtype=dtype)
        mask = as_mask("111.111").expand(T, S)
        weights = attention_weights(q, k, mask=mask)
        assert weights.dtype == dtype
        assert torch.equal(weights[..., 3], torch.zeros(B, H, T, dtype=dtype))
        tolerance = 1e-6 if dtype == torch.float32 else S * torch.finfo(dtype).eps
        assert_close(weights.float().sum(-1), torch.ones(B, H, T), atol=tolerance, rtol=0)

    @DTYPES
    def test_rows_sum_to_one_or_to_zero(self, dtype):
        q, k, _ = qkv(dtype=dtype)
        mask = torch.rand(B, 1, T, S) < 0.5
        mask[0, 0, 2], mask[..., 3, 0] = False, True
        weights = attention_weights(q, k, mask=mask, is_causal=True)
        assert weights.shape == (B, H, T, S)
        assert weights.dtype == dtype
        visible = mask & causal_mask(T, S)
        assert (weights[(~visible).expand_as(weights)] == 0).all()
        want = visible.any(-1).expand(B, H, T).float()
        assert_close(weights.float().sum(-1), want, atol=1e-2, rtol=0)
        assert (want == 0).any()
        assert (want == 1).any()

    @DTYPES
    def test_softmax_runs_in_float32(self, dtype):
        seen = []

        class Watch(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if function is torch.Tensor.softmax:
                    seen.append(args[0].dtype)
                return function(*args, **(kwargs or {}))

        q, k, _ = qkv(dtype=dtype)
        with Watch():
            attention_weights(q, k)
        assert seen == [torch.float32]

    def test_float64_stays_exact(self):
        q, k, _ = qkv()
        want = (q @ k.repeat_interleave(2, dim=1).mT / math.sqrt(E)).softmax(-1)
        assert_close(attention_weights(q, k), want, atol=1e-15, rtol=1e-14)

    def test_weights_times_values_are_the_output(self):
        q, k, v = qkv()
        weights = attention_weights(q, k, is_causal=True)
        assert_close(weighted_values(weights, v), attend(q, k, v, is_causal=True))

    def test_alibi_bias_prefers_the_near(self):
        q, k, _ = qkv(K, K)
        weights = attention_weights(
            torch.zeros_like(q), k, bias=alibi_bias(K, T, S).double(), is_causal=True
        )
        last = weights[:, :, -1]
        assert (last.diff(dim=-1) > 0).all()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("path", [attend, eager])
class TestErrors:
    def test_mask_of_numbers(self, path):
        q, k, v = qkv()
        with pytest.raises(MaskError, match=r"must be boolean.*float32.*`bias`.*mask\.bool\(\)"):
            path(q, k, v, mask=torch.zeros(T, S))

    def test_mask_of_three_axes(self, path):
        q, k, v = qkv()
        with pytest.raises(MaskError, match=r"\(2, 5, 7\) is ambiguous.*unsqueeze\(1\)"):
            path(q, k, v, mask=torch.ones(B, T, S, dtype=torch.bool))

    @pytest.mark.parametrize("shape", [(S,), (B, S), (T, T), (3, 1, T, S), (1, B, 1, T, S)])
    def test_mask_that_does_not_broadcast(self, path, shape):
        q, k, v = qkv()
        with pytest.raises(MaskError, match=r"does not broadcast to .* = \(2, 6, 5, 7\)"):
            path(q, k, v, mask=torch.ones(shape, dtype=torch.bool))

    def test_mask_larger_than_the_batch(self, path):
        q, k, v = (x[:1] for x in qkv())
        with pytest.raises(MaskError, match=r"\(3, 1, 5, 7\) does not broadcast"):
            path(q, k, v, mask=torch.ones(3, 1, T, S, dtype=torch.bool))

    def test_widths(self, path):
        q, k, v = qkv()
        with pytest.raises(ShapeError, match="queries are 10 wide and keys 11"):
            path(q[..., :10], k, v)

    def test_heads(self, path):
        q, k, v = qkv(4, 3)
        with pytest.raises(ShapeError, match="4 query heads cannot share 3"):
            path(q, k, v)

    def test_batches(self, path):
        q, k, v = qkv()
        with pytest.raises(ShapeError, match="2 rows of queries and 1 of keys"):
            path(q, k[:1], v[:1])

    def test_values_shorter_than_keys(self, path):
        """The fused kernel would read past their end without a word."""
        q, k, v = qkv()
        with pytest.raises(ShapeError, match="every key needs its value"):
            path(q, k, v[:, :, : S - 1])
        with pytest.raises(ShapeError, match="every key needs its value"):
            path(q, k, v[:, :1])
