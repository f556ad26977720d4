"""FlashAttention in plain PyTorch: the same numbers as the explicit path, in linear memory."""

import itertools

import pytest
import torch
from glassformer import attend
from glassformer.errors import MaskError, ShapeError
from glassformer.functional import flash, flash_attend, padding_mask
from glassformer.lab import peak_bytes, saved_bytes
from hypothesis import given
from hypothesis import strategies as st
from support.core import as_mask
from torch.testing import assert_close

B, H, K, E, V = 2, 6, 3, 11, 13


def qkv(q_len, k_len, *, n_heads=H, n_kv_heads=K, dtype=torch.float32):
    shapes = [(n_heads, q_len, E), (n_kv_heads, k_len, E), (n_kv_heads, k_len, V)]
    return [torch.randn(B, *shape).to(dtype).requires_grad_() for shape in shapes]


def results(path, q, k, v, **options):
    out = path(q, k, v, **options)
    weights = torch.linspace(-1, 1, out.numel()).to(out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * weights).sum(), (q, k, v))]


def agree(q, k, v, *, atol=1e-5, rtol=1e-5, block=4, **options):
    got = results(flash_attend, q, k, v, block=block, **options)
    want = results(attend, q, k, v, eager=True, **options)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.isfinite().all()
        assert_close(one, other, atol=atol, rtol=rtol)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize(("q_len", "k_len"), [(17, 17), (7, 19), (19, 7), (1, 13), (5, 0), (0, 5)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_equals_the_explicit_path_forward_and_backward(n_kv_heads, q_len, k_len, is_causal):
    q, k, v = qkv(q_len, k_len, n_kv_heads=n_kv_heads)
    agree(q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 17, 64])
def test_size_of_a_tile_changes_nothing(block):
    q, k, v = qkv(17, 17)
    agree(q, k, v, is_causal=True, block=block)


@pytest.mark.parametrize(
    "shape", [(11, 13), (B, H, 11, 13), (B, 1, 1, 13), (1, H, 11, 13), (1, 13), (B, 1, 11, 1)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_broadcast(shape, is_causal):
    q, k, v = qkv(11, 13)
    agree(q, k, v, mask=torch.rand(shape) < 0.6, is_causal=is_causal, scale=0.4)


def test_blind_rows_are_zero_with_zero_gradients():
    q, k, v = qkv(5, 5)
    mask = as_mask("1....", ".....", "111..", "....1", ".....")
    agree(q, k, v, mask=mask, block=2)
    out, dq, _, _ = results(flash_attend, q, k, v, mask=mask, block=2)
    for blind in (1, 4):
        assert torch.equal(out[:, :, blind], torch.zeros(B, H, V))
        assert torch.equal(dq[:, :, blind], torch.zeros(B, H, E))
    nothing = results(flash_attend, q, k, v, mask=torch.zeros(5, 5, dtype=torch.bool))
    assert all(torch.equal(x, torch.zeros_like(x)) for x in nothing)


def test_padded_rows_and_causality():
    q, k, v = qkv(9, 9)
    lengths = torch.tensor([9, 4])
    mask = padding_mask(torch.arange(9) < lengths[:, None])
    agree(q, k, v, mask=mask, is_causal=True)


@pytest.mark.parametrize(("dtype", "ulp"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_is_within_roundings_of_float32(dtype, ulp):
    """Sums run in float32, so the forward pass is the exact one, rounded once."""
    q, k, v = qkv(37, 37, dtype=dtype)
    got = results(flash_attend, q, k, v, is_causal=True, block=8)
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    want = results(flash_attend, *exact, is_causal=True, block=8)
    assert all(x.dtype == dtype for x in got)
    assert_close(got[0].float(), want[0], atol=1e-6, rtol=ulp)
    for one, other in zip(got[1:], want[1:], strict=True):
        assert_close(one.float(), other, atol=8 * ulp, rtol=8 * ulp)
    agree(q, k, v, is_causal=True, atol=16 * ulp, rtol=8 * ulp)


def test_autocast_does_not_reach_the_tiles():
    q, k, v = qkv(17, 17)
    want = results(flash_attend, q, k, v, is_causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results(flash_attend, q, k, v, is_causal=True)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


def test_large_scores_do_not_overflow():
    k = torch.tensor([151.3, 0.0, -5.0]).view(1, 1, 3, 1)
    q, v = torch.ones(1, 1, 1, 1), torch.eye(3).view(1, 1, 3, 3)
    want = torch.tensor([151.3, 0.0, -5.0]).softmax(-1)
    for order in itertools.permutations(range(3)):  # the largest may come first or last
        got = flash_attend(q * 10, k[:, :, order], v, block=1, scale=0.1)
        assert_close(got[0, 0, 0], want[list(order)])


def test_gradcheck():
    q, k, v = (x.detach()[:1, :, :, :2].requires_grad_() for x in qkv(3, 4, dtype=torch.float64))
    mask = as_mask("11..", "....", "1.1.")
    assert torch.autograd.gradcheck(
        lambda *x: flash_attend(*x, mask=mask, is_causal=True, block=2), (q, k, v)
    )


@given(
    st.tuples(*[st.integers(1, 9)] * 2), st.integers(1, 10), st.booleans(), st.integers(0, 2**16)
)
def test_any_lengths_and_tiles(lengths, block, is_causal, seed):
    torch.manual_seed(seed)
    q, k, v = qkv(*lengths)
    mask = torch.rand(B, H, *lengths) < 0.7
    agree(q, k, v, mask=mask, is_causal=is_causal, block=block)


def test_tiles_above_the_diagonal_are_skipped(monkeypatch):
    """16 of 16 tiles without the flag, 4 + 3 + 2 + 1 with it; and a shorter past skips more."""
    seen = []
    scores = flash._Tiles.scores
    monkeypatch.setattr(
        flash._Tiles, "scores", lambda *args: seen.append(args[1:]) or scores(*args)
    )

    def tiles(*lengths, is_causal):
        seen.clear()
        results(flash_attend, *qkv(*lengths), is_causal=is_causal, block=4)
        return len(seen)

    assert tiles(16, 16, is_causal=False) == 2 * 16
    assert tiles(16, 16, is_causal=True) == 2 * 10
    assert tiles(4, 16, is_causal=True) == 2 * 4
    assert tiles(16, 4, is_causal=True) == 2 * 1


def training_peak(path, length):
    q, k, v = qkv(length, length)
    return peak_bytes(lambda: results(path, q, k, v, is_causal=True))


def test_peak_memory_grows_linearly_and_the_explicit_path_quadratically():
    """Each doubling adds twice as much, to the byte; the explicit path four times as much."""

    def growth(path):
        first, second, third = (training_peak(path, length) for length in (128, 256, 512))
        return (third - second) / (second - first)

    assert growth(flash_attend) == pytest.approx(2.0, rel=0.02)
    assert growth(lambda *qkv, **options: attend(*qkv, eager=True, **options)) > 3.7


def test_backward_keeps_the_inputs_the_output_and_one_number_per_query():
    q, k, v = qkv(128, 128)
    numbers = sum(x.numel() for x in (q, k, v)) + B * H * 128 * (V + 1)
    assert saved_bytes(flash_attend, q, k, v) == 4 * numbers
    assert saved_bytes(attend, q, k, v, eager=True) > 4 * B * H * 128 * 128


def test_no_second_derivative():
    q, k, v = qkv(3, 3)
    loss = flash_attend(q, k, v).square().sum()
    (grad,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"block": 0}, ShapeError, "block=0 is no size of a tile"),
        ({"mask": torch.ones(5, 4, dtype=torch.bool)}, MaskError, "does not broadcast"),
        ({"mask": torch.ones(2, 5, 5, dtype=torch.bool)}, MaskError, "ambiguous"),
    ],
)
def test_refuses(change, error, message):
    with pytest.raises(error, match=message):
        flash_attend(*qkv(5, 5), **change)


@pytest.mark.usefixtures("no_shape_checks")
def test_refuses_what_does_not_fit():
    q, k, v = qkv(5, 5)
    with pytest.raises(MaskError, match="must be boolean"):
        flash_attend(q, k, v, mask=torch.ones(5, 5))
    with pytest.raises(ShapeError, match="every key needs its value"):
        flash_attend(q, k, v[:, :, :4])
    with pytest.raises(ShapeError, match="cannot share 5 key/value heads"):
        flash_attend(q, *qkv(5, 5, n_kv_heads=5)[1:])
