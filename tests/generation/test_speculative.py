"""Speculative decoding: the large model's own distribution, whatever the draft."""

import copy
import itertools
from unittest import mock

import pytest
import torch
from glassformer.errors import GenerationError
from glassformer.generation import generate, sampler, shaper, speculate, verify_draft
from hypothesis import given
from hypothesis import strategies as st
from support.core import decoder_config, scramble, scrambled
from support.toys import Toy, listener, table_rule

DRAFTS = pytest.mark.parametrize("n_draft", [1, 3, 7])


def models(**changes):
    """A large model, one that often agrees with it, and a small one that never does."""
    large = scrambled(decoder_config(tie_embeddings=False, **changes)).float()
    near = scramble(copy.deepcopy(large), by=0.05)
    small = scrambled(decoder_config(n_layers=1, d_model=12, positions="learned")).float()
    return large, near, small


@given(st.integers(0, 2**16), st.integers(2, 5), st.sampled_from([0.3, 1.0, 4.0]))
def test_accepted_and_replaced_together_follow_p(seed, vocab_size, spread):
    """Exactly: every drafted token, on both sides of its threshold, and what replaces it."""
    torch.manual_seed(seed)
    p, q = (spread * torch.randn(2, vocab_size)).softmax(-1)
    total = torch.zeros(vocab_size)
    for token in range(vocab_size):
        accept = min(1.0, float(p[token] / q[token]))
        assert outcome(token, q, p, coin=accept - 1e-4)[0] == 1
        total[token] += q[token] * accept
        if accept < 1:
            accepted, weights = outcome(token, q, p, coin=accept + 1e-4)
            assert accepted == 0
            total += q[token] * (1 - accept) * weights / weights.sum()
    torch.testing.assert_close(total, p, rtol=0, atol=1e-5)


def outcome(token, q, p, *, coin):
    """Tokens accepted when the coin falls so, and the weights of the draw that follows."""
    with (
        mock.patch.object(torch, "rand", lambda n, **options: torch.full((n,), coin)),
        mock.patch.object(torch, "multinomial", return_value=torch.tensor([0])) as draw,
    ):
        accepted, _ = verify_draft(torch.tensor([token]), q[None], torch.stack((p, p)))
    return accepted, draw.call_args.args[0]


def chi_square(counts, expected):
    """Pearson's statistic, cells expected less than 5 times put together."""
    rare = expected < 5
    counts, expected = (
        torch.cat((x[~rare], x[rare].sum()[None].double())) for x in (counts, expected)
    )
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum().item()
    return statistic, int(keep.sum()) - 1


def assert_plausible(counts, probabilities):
    """Within 4 standard deviations of the statistic's mean; the draws are seeded."""
    statistic, freedom = chi_square(counts.double(), probabilities.double() * counts.sum())
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5, (statistic, freedom)


def test_verified_tokens_are_distributed_as_p(no_shape_checks):
    """Two drafted tokens, 5 000 times: the pair, or the one that replaces, follows p."""
    n, generator = 5_000, torch.Generator().manual_seed(5)
    p = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.4, 0.1, 0.1, 0.4], [0.3, 0.3, 0.3, 0.1]])
    q = torch.tensor([[0.4, 0.1, 0.3, 0.2], [0.1, 0.1, 0.7, 0.1]])
    first, second, third = (torch.zeros(4) for _ in range(3))
    drafts = torch.multinomial(q, n, replacement=True, generator=generator).T
    for drafted in drafts:
        accepted, following = verify_draft(drafted, q, p, generator)
        new = [*drafted[:accepted].tolist(), following]
        for counts, token in zip((first, second, third), new, strict=False):
            counts[token] += 1
    for counts, row in zip((first, second, third), p, strict=True):
        assert_plausible(counts, row)
    assert_plausible(torch.tensor([second.sum(), n - second.sum()]), as_share(p[0], q[0]))


def as_share(p, q):
    share = torch.minimum(p, q).sum()
    return torch.stack((share, 1 - share))


def test_p_equal_to_q_is_always_accepted_and_an_impossible_token_never():
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    assert all(verify_draft(torch.tensor([i % 2]), p[:1], p)[0] == 1 for i in range(50))
    sure = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert verify_draft(torch.tensor([0]), torch.tensor([[1.0, 0.0]]), sure) == (0, 1)
    assert verify_draft(torch.tensor([1]), torch.tensor([[0.0, 1.0]]), sure) == (1, 0)


def test_texts_are_distributed_as_the_large_models(no_shape_checks):
    """All texts of 3 tokens over 3 ids: their counts in 600 runs, against the exact ones."""
    large_rule, small_rule = table_rule(2, 3, spread=1.0), table_rule(3, 3, spread=1.0)
    large, small = Toy(large_rule, 3), Toy(small_rule, 3)
    texts = list(itertools.product(range(3), repeat=3))
    expected = torch.stack(
        [
            torch.stack([large_rule([2, *text[:i]])[text[i]] for i in range(3)]).prod()
            for text in texts
        ]
    )
    counts = torch.zeros(len(texts))
    for seed in range(600):
        result = speculate(
            large, small, [2], max_new_tokens=3, n_draft=2, seed=seed, shape=shaper()
        )
        counts[texts.index(tuple(result.tokens))] += 1
    assert_plausible(counts, expected)
    drafted = torch.stack(
        [
            torch.stack([small_rule([2, *text[:i]])[text[i]] for i in range(3)]).prod()
            for text in texts
        ]
    )
    with pytest.raises(AssertionError):
        assert_plausible(counts, drafted)


@DRAFTS
@pytest.mark.parametrize("stop_ids", [[], [17, 12]])
def test_the_default_is_greedy_decoding(n_draft, stop_ids):
    large, near, small = models()
    options = {"max_new_tokens": 13, "stop_ids": stop_ids}
    expected = generate(large, [[4, 1, 2, 6, 3]], **options)
    for draft in (near, small, large):
        result = speculate(large, draft, [4, 1, 2, 6, 3], n_draft=n_draft, **options)
        assert result.tokens == expected.to_lists()[0]
        log_probs = torch.tensor(result.log_probs)
        torch.testing.assert_close(log_probs, expected.log_probs[0], rtol=0, atol=1e-5)
        if not stop_ids:
            assert result.n_passes + result.n_accepted == 13
            assert draft is not near or 0 < result.n_accepted < result.n_judged


def test_a_perfect_draft_saves_passes_and_a_useless_one_costs_none():
    def always(token):
        return lambda ids: [float(i == token) for i in range(5)]

    large, useless = Toy(always(3), 5), Toy(always(1), 5)
    result = speculate(large, Toy(always(3), 5), [2], max_new_tokens=12, n_draft=3)
    assert result.tokens == [3] * 12
    assert (result.n_passes, result.n_judged, result.n_accepted) == (3, 9, 9)
    assert result.acceptance_rate == 1.0
    assert large.fed == [(1, 4), (1, 4), (1, 4)], "the prompt and 3, then the last token and 3"
    result = speculate(large, useless, [2], max_new_tokens=4, n_draft=3)
    assert result.tokens == [3] * 4
    assert (result.n_passes, result.n_judged, result.n_accepted) == (4, 3, 0)
    assert result.acceptance_rate == 0.0


def test_the_penalty_sees_the_drafted_tokens():
    """Within one draft, a token that was just drafted is already penalised."""
    large, near, small = models()
    shape = shaper(temperature=0.0, repetition_penalty=1e3)
    choose = sampler(temperature=0.0, repetition_penalty=1e3)
    expected = generate(large, [[5, 3]], max_new_tokens=9, choose=choose).to_lists()[0]
    assert len(set(expected)) == 9
    for draft in (near, small, large):
        result = speculate(large, draft, [5, 3], max_new_tokens=9, n_draft=4, shape=shape)
        assert result.tokens == expected
    assert result.acceptance_rate == 1.0


@DRAFTS
def test_a_sliding_window_takes_rejected_drafts_back(n_draft):
    """The window is shorter than the text and than some drafts."""
    large, near, _ = models(sliding_window=4)
    options = {"max_new_tokens": 13}
    result = speculate(large, near, [4, 1, 2, 6, 3], n_draft=n_draft, **options)
    assert result.tokens == generate(large, [[4, 1, 2, 6, 3]], **options).to_lists()[0]
    assert 0 < result.n_accepted < result.n_judged


@DRAFTS
def test_translators_speculate_over_one_source(n_draft):
    large, small = listener(), listener(n_layers=1)
    source = [7, 3, 11, 5]
    options = {"max_new_tokens": 9, "bos_id": 1, "stop_ids": [17]}
    result = speculate(large, small, source, n_draft=n_draft, **options)
    assert result.tokens == generate(large, [source], **options).to_lists()[0]


def test_the_seed_decides_and_the_models_are_left_as_they_were():
    large, small, _ = (model.train() for model in models())
    state = torch.get_rng_state()
    runs = [
        speculate(large, small, [5], max_new_tokens=11, seed=seed, shape=shaper(temperature=3.0))
        for seed in (1, 1, 2)
    ]
    assert runs[0].tokens == runs[1].tokens != runs[2].tokens
    assert torch.equal(torch.get_rng_state(), state)
    assert large.training
    assert small.training

    def fail(logits, text):
        raise RuntimeError("no shape")

    with pytest.raises(RuntimeError, match="no shape"):
        speculate(large, small, [5], max_new_tokens=3, shape=fail)
    assert large.training
    assert small.training
    assert torch.is_grad_enabled()


def test_models_that_cannot_work_together_are_refused():
    large = scrambled(decoder_config(), dtype=torch.float32)
    other = scrambled(decoder_config(vocab_size=31), dtype=torch.float32)
    with pytest.raises(GenerationError, match="vocabularies of 29 and 31"):
        speculate(large, other, [5], max_new_tokens=3)
    with pytest.raises(GenerationError, match="n_draft=0 must be at least 1"):
        speculate(large, large, [5], max_new_tokens=3, n_draft=0)
