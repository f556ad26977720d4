"""Batches: every example once, the same for the same seed and epoch."""

import random

import pytest
import torch
from glassformer.data import TokenBudgetBatches, pad_batch, shuffled_batches
from glassformer.errors import DataError
from hypothesis import given
from hypothesis import strategies as st

lengths_and_budget = st.tuples(
    st.lists(st.integers(1, 41), min_size=1, max_size=61), st.integers(1, 67)
)


@given(lengths_and_budget, st.integers(0, 3))
def test_every_example_once_within_the_budget(given_sizes, epoch):
    lengths, budget = given_sizes
    batches = TokenBudgetBatches(lengths, budget, seed=3).epoch(epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[index] for index in batch) * len(batch)
        assert padded <= budget or len(batch) == 1


def padded_size(lengths, batch):
    """What a batch of pairs costs: both sides padded to their longest."""
    return len(batch) * sum(max(lengths[index][side] for index in batch) for side in (0, 1))


pair_lengths = st.lists(st.tuples(st.integers(1, 31), st.integers(1, 37)), min_size=1, max_size=61)


@given(pair_lengths, st.integers(1, 97), st.integers(0, 3))
def test_every_pair_once_within_the_budget_of_both_sides(lengths, budget, epoch):
    batches = TokenBudgetBatches(lengths, budget, seed=3)
    assert sorted(i for batch in batches.epoch(epoch) for i in batch) == list(range(len(lengths)))
    assert all(len(b) == 1 or padded_size(lengths, b) <= budget for b in batches.epoch(epoch))
    assert len(batches) == len(batches.epoch(epoch))
    assert batches.n_oversized == sum(sum(pair) > budget for pair in lengths)


def test_a_batch_of_pairs_pays_for_its_own_longest_sides_only():
    """Pair 0 has the long source; 1 and 2 fit together as soon as it is in another batch."""
    batches = TokenBudgetBatches([(7, 1), (1, 7), (1, 7)], 16).epoch(0)
    assert sorted(sorted(batch) for batch in batches) == [[0], [1, 2]]


def test_pairs_of_similar_lengths_share_a_batch():
    """Padding stays small: of what the batches cost, nearly all is real tokens."""
    generator = random.Random(5)
    sources = [3 + int(generator.expovariate(0.1)) for _ in range(5003)]
    lengths = [(source, max(1, source + generator.randint(-2, 3))) for source in sources]
    batches = TokenBudgetBatches(lengths, 1024).epoch(0)
    padded = sum(padded_size(lengths, batch) for batch in batches)
    assert sum(map(sum, lengths)) / padded > 0.95
    assert max(padded_size(lengths, batch) for batch in batches) > 1024 * 0.9


def test_O28_a_sentence_over_the_budget_is_a_batch_of_its_own():
    """O28: budget 10, lengths 3, 12, 4: nothing stops, loops or is lost, for training (shuffled
    epochs) and evaluation (epoch 0) alike, and for pairs."""
    batches = TokenBudgetBatches([3, 12, 4], 10)
    pairs = TokenBudgetBatches([(2, 1), (5, 7), (1, 3)], 11)
    for epoch in range(5):
        assert sorted(sorted(batch) for batch in batches.epoch(epoch)) == [[0, 2], [1]]
        assert sorted(sorted(batch) for batch in pairs.epoch(epoch)) == [[0, 2], [1]]
    assert batches.n_oversized == pairs.n_oversized == 1


def test_O19_orders_differ_between_epochs_and_repeat_with_the_seed():
    """O19: the epoch is part of the shuffle."""
    lengths = [1 + i % 13 for i in range(211)]
    batches = TokenBudgetBatches(lengths, 53, seed=7)
    assert batches.epoch(0) != batches.epoch(1)
    assert batches.epoch(1) == TokenBudgetBatches(lengths, 53, seed=7).epoch(1)
    assert batches.epoch(1) != TokenBudgetBatches(lengths, 53, seed=8).epoch(1)
    assert len(batches) == len(batches.epoch(5))
    windows = [shuffled_batches(211, 10, seed=7, epoch=e) for e in (0, 1, 0)]
    assert windows[0] == windows[2] != windows[1]
    assert windows[0] != shuffled_batches(211, 10, seed=8, epoch=0)


def test_the_batches_themselves_are_shuffled_and_their_partners_change():
    lengths = [1 + i % 13 for i in range(211)]
    batches = TokenBudgetBatches(lengths, 53, seed=7)
    longest = [max(lengths[i] for i in batch) for batch in batches.epoch(0)]
    assert longest != sorted(longest)
    partners = [{frozenset(batch) for batch in batches.epoch(e)} for e in (0, 1)]
    assert partners[0] != partners[1]


def test_the_order_is_recorded():
    """A change of the shuffle would silently break resuming from older checkpoints."""
    assert shuffled_batches(7, 3, seed=1, epoch=2) == [[6, 2, 3], [1, 4, 0], [5]]


@given(st.integers(1, 97), st.integers(1, 23))
def test_shuffled_batches_cover_every_index_once(n_items, batch_size):
    batches = shuffled_batches(n_items, batch_size, seed=0, epoch=0)
    assert sorted(index for batch in batches for index in batch) == list(range(n_items))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_global_random_state_is_neither_read_nor_moved():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    shuffled_batches(11, 3, seed=0, epoch=0)
    TokenBudgetBatches([2, 3, 5], 7).epoch(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_padding_right_and_left():
    tokens, mask = pad_batch([[5, 7], [11, 13, 17]], pad_id=0)
    assert tokens.tolist() == [[5, 7, 0], [11, 13, 17]]
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    tokens, mask = pad_batch([[5, 7], [11, 13, 17]], pad_id=9, left=True)
    assert tokens.tolist() == [[9, 5, 7], [11, 13, 17]]
    assert mask.tolist() == [[False, True, True], [True, True, True]]
    assert tokens.dtype == torch.int64


def test_S02_a_real_token_with_the_pad_id_stays_visible():
    """S02: the mask comes from lengths, not from comparing ids."""
    _, mask = pad_batch([[5, 0, 7], [0]], pad_id=0)
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_bad_input_is_refused():
    with pytest.raises(DataError, match="0 lengths and max_tokens=5"):
        TokenBudgetBatches([], 5)
    with pytest.raises(DataError, match="max_tokens=0"):
        TokenBudgetBatches([3], 0)
    with pytest.raises(DataError, match="length 0 at index 1"):
        TokenBudgetBatches([3, 0], 5)
    with pytest.raises(DataError, match=r"length \(5, 0\) at index 1"):
        TokenBudgetBatches([(3, 2), (5, 0), (2, 2)], 5)
    with pytest.raises(DataError, match="batch_size=0"):
        shuffled_batches(5, 0, seed=0, epoch=0)
    with pytest.raises(DataError, match=r"lengths \[2, 0\]"):
        pad_batch([[5, 7], []], pad_id=0)
    with pytest.raises(DataError, match=r"lengths \[\]"):
        pad_batch([], pad_id=0)
