"""Samplers: exact at their edges, finite in every precision."""

import math
import re

import pytest
import torch
from glassformer.errors import GenerationError
from glassformer.generation import (
    Text,
    apply_temperature,
    greedy,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    sample,
    sampler,
    shaper,
)
from hypothesis import given, settings
from hypothesis import strategies as st

LOGITS = torch.tensor([[1.0, 2.0, 3.0, -1.0, 0.5]])


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.0, 1e-8])
def test_G13_p_near_zero_keeps_exactly_the_top_token(p, dtype):
    """G13: a naive rule removes every token at p=0 and samples noise."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]], dtype=dtype)
    assert kept(keep_top_p(logits, p)) == [[1], [0]]
    assert sampler(top_p=p, seed=0)(logits).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_G13_p_one_keeps_all(dtype):
    """G13: the running sum rounds to 1 long before the tail ends."""
    logits = torch.linspace(0, -40, 997, dtype=dtype)[None]
    assert torch.equal(keep_top_p(logits, 1.0), logits.float())


def test_top_p_keeps_the_fewest_tokens_that_reach_p():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.25, 0.25, 0.25, 0.25]]).log()
    assert kept(keep_top_p(logits, 0.5)) == [[1], [0, 1]]
    assert kept(keep_top_p(logits, 0.51)) == [[1, 3], [0, 1, 2]]
    assert kept(keep_top_p(logits, 0.8)) == [[1, 2, 3], [0, 1, 2, 3]]
    torch.testing.assert_close(keep_top_p(logits, 0.7)[0, [1, 3]], logits[0, [1, 3]])


def test_G14_temperature_zero_is_greedy():
    """G14: index 2 each time for logits 1, 2, 3, no division by zero."""
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    choose = sampler(temperature=0.0)
    assert [choose(logits).item() for _ in range(7)] == [2] * 7
    assert kept(apply_temperature(logits, 0.0)) == [[2]]
    tied = torch.tensor([[3.0, 5.0, 5.0]])
    assert sampler(temperature=0.0)(tied).item() == greedy(tied).item()


@pytest.mark.parametrize("temperature", [-1.0, -1e-9, math.inf, math.nan])
def test_G14_a_temperature_that_is_none_is_an_error(temperature):
    """G14: a negative temperature would turn the distribution around."""
    for use in (lambda t: apply_temperature(LOGITS, t), lambda t: sampler(temperature=t)):
        with pytest.raises(GenerationError, match=f"temperature={temperature} must be"):
            use(temperature)


def test_temperature_sharpens_and_flattens():
    sharp, plain, flat = (
        apply_temperature(LOGITS, t).softmax(-1).max().item() for t in (0.5, 1.0, 2.0)
    )
    assert flat < plain < sharp
    same = apply_temperature(LOGITS, 1.0)
    torch.testing.assert_close(same.softmax(-1), LOGITS.softmax(-1))


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_G14_a_temperature_next_to_zero_overflows_nothing(temperature):
    """G14: 0 / 0 and inf - inf lie in wait just above 0, too."""
    logits = torch.tensor([[0.0, 0.0, -1.0], [900.0, 1000.0, -1000.0]])
    probabilities = apply_temperature(logits, temperature).softmax(-1)
    assert probabilities.tolist() == [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 11])
def test_top_k_keeps_exactly_k_under_ties(k):
    logits = torch.tensor([[2.0, 2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0, 0.0]])
    result = keep_top_k(logits, k)
    assert [len(row) for row in kept(result)] == [min(k, 5)] * 2
    assert 1 in kept(result)[1] or 2 in kept(result)[1] or 3 in kept(result)[1]
    survived = result.isfinite()
    assert torch.equal(result[survived], logits[survived])


def test_values_out_of_range_are_refused_when_the_sampler_is_built():
    for k in (0, -3):
        with pytest.raises(GenerationError, match=f"top_k={k} must be at least 1"):
            sampler(top_k=k)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(GenerationError, match=f"top_p={p} must lie between 0 and 1"):
            sampler(top_p=p)


@settings(deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=11),
    st.floats(0, 3),
    st.integers(1, 13),
    st.floats(0, 1),
)
def test_any_combination_draws_a_token_that_every_filter_keeps(row, temperature, k, p):
    logits = torch.tensor([row])
    token = sampler(temperature=temperature, top_k=k, top_p=p, seed=3)(logits)
    shaped = keep_top_p(keep_top_k(apply_temperature(logits, temperature), k), p)
    assert shaped[0, token.item()].isfinite()


def test_k_1_and_p_0_are_greedy():
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    for choose in (sampler(top_k=1), sampler(top_p=0.0), sampler(temperature=0.0)):
        assert torch.equal(choose(logits), greedy(logits))


def test_draws_follow_the_probabilities_and_the_seed():
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    logits = probabilities.log().expand(20_011, 3)
    generator = torch.Generator().manual_seed(0)
    share = sample(logits, generator).bincount(minlength=3) / len(logits)
    torch.testing.assert_close(share, probabilities, rtol=0, atol=0.015)
    one, same, other = (sampler(seed=seed) for seed in (3, 3, 5))
    first = one(logits)
    assert torch.equal(first, same(logits))
    assert not torch.equal(first, other(logits))
    assert not torch.equal(first, one(logits)), "the same sampler goes on, it does not repeat"


def test_without_a_seed_the_global_numbers_are_used():
    logits = torch.zeros(101, 5)
    choose = sampler()
    torch.manual_seed(7)
    first = choose(logits)
    torch.manual_seed(7)
    assert torch.equal(choose(logits), first)
    state = torch.get_rng_state()
    sampler(seed=1)(logits)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = LOGITS.to(dtype)
    for result in (apply_temperature(logits, 0.7), keep_top_k(logits, 2), keep_top_p(logits, 0.9)):
        assert result.dtype == torch.float32
    assert sample(logits).dtype == torch.int64


def text(*rows: list[int], mask: list[list[int]] | None = None) -> Text:
    tokens = torch.tensor(rows)
    real = torch.ones_like(tokens) if mask is None else torch.tensor(mask)
    return Text(tokens, real.bool())


def test_the_penalty_divides_positive_and_multiplies_negative_logits():
    logits = torch.tensor([[2.0, -3.0, 0.0, 4.0, -1.0], [2.0, -3.0, 0.0, 4.0, -1.0]])
    result = penalise_repetition(logits, text([0, 1, 1, 1], [2, 4, 4, 2]), 2.0)
    assert result.tolist() == [[1.0, -6.0, 0.0, 4.0, -1.0], [2.0, -3.0, 0.0, 4.0, -2.0]]
    assert torch.equal(penalise_repetition(logits, text([0, 1], [2, 3]), 1.0), logits)


def test_padding_is_never_penalised():
    """Nor is a real token with the id of the padding spared."""
    logits = torch.tensor([[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    seen = text([0, 0, 1], [0, 0, 1], mask=[[0, 0, 1], [0, 1, 1]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[2, 1, 2], [1, 1, 2]]


@pytest.mark.parametrize("penalty", [0.0, -1.2, math.inf, math.nan, 1e-40, 1e40])
def test_a_penalty_out_of_range_is_refused_when_the_sampler_is_built(penalty):
    for build in (sampler, shaper):
        with pytest.raises(
            GenerationError, match=re.escape(f"repetition_penalty={penalty} must be")
        ):
            build(repetition_penalty=penalty)


@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_the_largest_penalties_leave_something_to_draw(penalty):
    logits, seen = torch.tensor([[1e4, -1e4, 0.0]]), text([0, 1, 2])
    shaped = shaper(repetition_penalty=penalty, temperature=0.8)(logits, seen)
    assert bool(shaped.softmax(-1).isfinite().all())


def test_a_penalty_needs_the_text():
    with pytest.raises(GenerationError, match="needs the text so far"):
        sampler(repetition_penalty=1.2)(LOGITS)


def test_the_penalty_comes_before_the_temperature():
    logits, seen = torch.tensor([[3.0, 2.0, -1.0]]), text([0, 2])
    shaped = shaper(repetition_penalty=2.0, temperature=0.5)(logits, seen)
    expected = torch.tensor([[1.5, 2.0, -2.0]]) / 0.5
    torch.testing.assert_close(shaped.softmax(-1), expected.softmax(-1))
    assert sampler(repetition_penalty=2.0, temperature=0.0)(logits, seen).item() == 1


@given(st.integers(0, 2**16), st.floats(0.125, 8), st.sampled_from([1, 3, 11]), st.floats(0.1, 1))
def test_a_sampler_draws_from_what_its_shaper_leaves(seed, temperature, k, p):
    torch.manual_seed(seed)
    logits, seen = torch.randn(1, 11), text([seed % 11, 3])
    options = {"temperature": temperature, "top_k": k, "top_p": p, "repetition_penalty": 1.5}
    generator = torch.Generator().manual_seed(seed)
    expected = sample(shaper(**options)(logits, seen), generator)
    assert torch.equal(sampler(**options, seed=seed)(logits, seen), expected)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(GenerationError, match=f"seed={seed} must be from 0"):
        sampler(seed=seed)
