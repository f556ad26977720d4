"""What holds for any sizes, masks and splits."""

import torch
from glassformer import attend, attention_weights
from glassformer.functional import (
    apply_rotary,
    causal_mask,
    combine_masks,
    rotary_angles,
    sliding_window_mask,
    token_mask_from_lengths,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**16)


@st.composite
def problems(draw):
    """Queries, keys, values and a random mask of any sizes and group count."""
    torch.manual_seed(draw(seeds))
    batch, n_kv, group, q_len, k_len, width = (draw(sizes) for _ in range(6))
    q = torch.randn(batch, n_kv * group, q_len, width).double()
    k, v = torch.randn(2, batch, n_kv, k_len, width).double()
    shape = [draw(st.sampled_from((1, n))) for n in (batch, n_kv * group, q_len)]
    mask = torch.rand(*shape, k_len) < draw(st.sampled_from((0.1, 0.5, 1.0)))
    return q, k, v, mask


@given(problems(), st.booleans())
def test_paths_agree_and_are_finite(problem, is_causal):
    q, k, v, mask = problem
    fused = attend(q, k, v, mask=mask, is_causal=is_causal)
    eager = attend(q, k, v, mask=mask, is_causal=is_causal, eager=True)
    assert fused.isfinite().all()
    assert_close(fused, eager, atol=1e-10, rtol=0)


@given(problems(), st.booleans())
def test_rows_sum_to_one_or_zero_and_hidden_keys_weigh_nothing(problem, is_causal):
    q, k, _, mask = problem
    weights = attention_weights(q, k, mask=mask, is_causal=is_causal)
    visible = mask
    if is_causal:
        visible = mask & causal_mask(q.shape[2], k.shape[2])
    visible = visible.expand_as(weights)
    assert (weights[~visible] == 0).all()
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), visible.any(-1).double())


@given(problems(), st.integers(0, 5))
def test_hidden_keys_may_hold_anything(problem, hidden):
    q, k, v, mask = problem
    hidden %= k.shape[2]
    mask = mask.clone()
    mask[..., hidden] = False
    want = attend(q, k, v, mask=mask)
    k, v = k.clone(), v.clone()
    k[:, :, hidden], v[:, :, hidden] = 50.0, -50.0
    assert_close(attend(q, k, v, mask=mask), want, atol=1e-12, rtol=0)


@given(problems())
def test_keys_have_no_order(problem):
    q, k, v, mask = problem
    order = torch.randperm(k.shape[2])
    got = attend(q, k[:, :, order], v[:, :, order], mask=mask[..., order])
    assert_close(got, attend(q, k, v, mask=mask), atol=1e-10, rtol=0)


@given(problems())
def test_outputs_stay_between_the_values(problem):
    q, k, v, _ = problem
    group = q.shape[1] // k.shape[1]
    out = attend(q, k, v)
    low = v.amin(2, keepdim=True).repeat_interleave(group, dim=1)
    high = v.amax(2, keepdim=True).repeat_interleave(group, dim=1)
    assert (out >= low - 1e-9).all()
    assert (out <= high + 1e-9).all()


@given(problems(), st.floats(-1000, 1000))
def test_a_shift_of_all_scores_changes_nothing(problem, shift):
    q, k, v, mask = problem
    bias = torch.full((q.shape[2], k.shape[2]), shift).double()
    got = attend(q, k, v, mask=mask, bias=bias)
    assert_close(got, attend(q, k, v, mask=mask), atol=1e-9, rtol=0)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5), st.integers(-3, 9) | st.none())
def test_masks_are_comparisons_of_positions(q_len, k_len, window, offset):
    causal = causal_mask(q_len, k_len, offset=offset)
    near = sliding_window_mask(q_len, window, k_len, offset=offset)
    start = k_len - q_len if offset is None else offset
    for t in range(q_len):
        for s in range(k_len):
            assert bool(causal[t, s]) == (s <= t + start)
            assert bool(near[t, s]) == (t + start - window < s <= t + start)
    assert torch.equal(combine_masks(causal, near), near)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 9) | st.none())
def test_token_mask_counts_its_lengths(lengths, max_len):
    mask = token_mask_from_lengths(torch.tensor(lengths), max_len)
    width = max(lengths) if max_len is None else max_len
    assert mask.shape == (len(lengths), width)
    assert mask.sum(-1).tolist() == [min(n, width) for n in lengths]
    assert not (mask[:, 1:] & ~mask[:, :-1]).any()  # no real token behind padding


@given(seeds, sizes, st.integers(1, 5), st.integers(0, 50))
def test_rotary_scores_depend_on_differences(seed, length, half, start):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 2, length, 2 * half).double()
    scores = []
    for first in (0, start):
        angles = rotary_angles(torch.arange(first, first + length), 2 * half)
        scores.append(apply_rotary(q, *angles) @ apply_rotary(k, *angles).mT)
    assert_close(*scores, atol=1e-4, rtol=0)


@given(problems(), st.integers(0, 2**16))
def test_masks_are_permissions(problem, seed):
    """Whom one mask hides the combination hides, and what both allow it allows."""
    q, k, _, mask = problem
    torch.manual_seed(seed)
    other = torch.rand(q.shape[2], k.shape[2]) < 0.6
    both = combine_masks(mask, None, other)
    assert torch.equal(both, combine_masks(other, mask))
    assert torch.equal(combine_masks(both, mask), both)
    weights = attention_weights(q, k, mask=both)
    assert (weights[(~mask).expand_as(weights)] == 0).all()
    assert (weights[(~other).expand_as(weights)] == 0).all()
    assert (weights[both.expand_as(weights)] > 0).all()


@given(problems(), st.integers(1, 7))
def test_a_window_is_causality_without_the_distant_past(problem, window):
    q, k, v, mask = problem
    near = sliding_window_mask(q.shape[2], window, k.shape[2])
    got = attend(q, k, v, mask=mask & near)
    assert_close(got, attend(q, k, v, mask=mask & near, is_causal=True), atol=1e-10, rtol=0)
    if window >= k.shape[2]:
        assert_close(got, attend(q, k, v, mask=mask, is_causal=True), atol=1e-10, rtol=0)
