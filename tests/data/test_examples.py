"""Encoded pairs: eos always learnt, unknown tokens seen, fit for worker processes."""

import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from glassformer.data import (
    ParallelCorpus,
    SymbolVocabulary,
    TokenBudgetBatches,
    collate_pairs,
    encode_pairs,
    load_king_james,
    train_tokenizer,
    windows,
)
from glassformer.errors import DataError
from hypothesis import given
from hypothesis import strategies as st
from support.core import scrambled, translator_config

LETTERS = SymbolVocabulary.of(["abcdefghij"])
UPPER = SymbolVocabulary.of(["ABCDEFGH"])
PAIRS = [("ab", "ABC"), ("abcde", "A"), ("c", "ABCDEFG"), ("hij", "HG")]

collate = partial(collate_pairs, pad_id=0, bos_id=2)


def test_both_sides_end_with_eos_and_keep_their_order():
    examples = encode_pairs(PAIRS, LETTERS, UPPER)
    assert examples[0] == ([4, 5, 3], [4, 5, 6, 3])
    assert [UPPER.decode(target) for target in examples.targets] == [list(t) for _, t in PAIRS]
    assert examples.lengths == [(3, 4), (6, 2), (2, 8), (4, 3)]
    assert examples.lengths is examples.lengths  # counted once, so that loops may ask again
    assert len(examples) == 4
    assert examples.n_too_long == 0


def test_one_tokenizer_serves_both_sides():
    tokenizer = train_tokenizer(load_king_james().dev[:307], 401)
    examples = encode_pairs([("the earth", "the heaven")], tokenizer)
    assert examples[0] == (
        tokenizer.encode("the earth", eos=True),
        tokenizer.encode("the heaven", eos=True),
    )


@pytest.mark.parametrize(("max_len", "kept"), [(None, 4), (8, 4), (7, 3), (5, 2), (3, 0)])
def test_L07_a_pair_over_the_limit_is_left_out_and_never_cut(max_len, kept):
    """A limit that does not bite changes nothing; under any limit every last id is eos."""
    if kept == 0:
        with pytest.raises(DataError, match="4 pairs, of which none has at most max_len=3 ids"):
            encode_pairs(PAIRS, LETTERS, UPPER, max_len=max_len)
        return
    everything = encode_pairs(PAIRS, LETTERS, UPPER)
    examples = encode_pairs(PAIRS, LETTERS, UPPER, max_len=max_len)
    assert (len(examples), examples.n_too_long) == (kept, 4 - kept)
    assert all(pair in list(everything) for pair in examples)
    assert (examples == everything) is (kept == 4)
    batch = collate(list(examples))
    last = batch.target_mask.sum(dim=1, keepdim=True) - 1
    assert (batch.targets.gather(1, last) == UPPER.eos_id).all()
    assert batch.target_mask.gather(1, last).all(), "eos is counted in the loss"


def test_no_pairs_are_refused():
    with pytest.raises(DataError, match="0 pairs"):
        encode_pairs([], LETTERS)
    with pytest.raises(DataError, match=r"lengths \[\]"):
        collate([])


sides = st.lists(st.integers(0, 30), min_size=1, max_size=11)


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=7))
def test_a_batch_holds_its_pairs_and_nothing_else(pairs):
    batch = collate(pairs)
    for row, (source, target) in enumerate(pairs):
        assert batch.source[row][batch.source_mask[row]].tolist() == source
        assert batch.targets[row][batch.target_mask[row]].tolist() == target
        assert batch.inputs[row][batch.target_mask[row]].tolist() == [2, *target[:-1]]
        assert batch.source_mask[row].tolist() == [True] * len(source) + [False] * (
            batch.source.shape[1] - len(source)
        )
    assert not batch.source[~batch.source_mask].any()
    assert not batch.targets[~batch.target_mask].any()
    assert batch.inputs.shape == batch.targets.shape == batch.target_mask.shape


@pytest.mark.parametrize("unknown", [LETTERS.unk_id, LETTERS.pad_id])
def test_S02_an_unknown_token_is_seen_by_attention_and_counted_in_the_loss(unknown):
    """In the middle of a sentence; even if somebody's unknown id were that of the padding."""
    pairs = [([4, unknown, 5, 3], [5, unknown, 6, 3]), ([4, 5, 6, 7, 3], [6, 3])]
    batch = collate(pairs)
    assert batch.source_mask.sum(dim=1).tolist() == [4, 5]
    assert batch.target_mask.tolist() == [[True] * 4, [True, True, False, False]]
    model = scrambled(translator_config(pad_id=None))
    weight = model.source_embedding.tokens.weight
    before = model.encode(batch.source, token_mask=batch.source_mask)
    with torch.no_grad():
        weight[unknown] += torch.randn_like(weight[unknown])
    after = model.encode(batch.source, token_mask=batch.source_mask)
    changed = (after - before).abs().amax(dim=2) > 1e-6
    assert changed[0, :4].all(), "every token of its sentence sees it"
    assert not changed[1].any()


def test_batches_of_pairs_go_through_a_data_loader():
    examples = encode_pairs(PAIRS, LETTERS, UPPER)
    batches = TokenBudgetBatches(examples.lengths, 17, seed=5)
    loader = torch.utils.data.DataLoader(
        examples, batch_sampler=batches.epoch(1), collate_fn=collate
    )
    loaded = list(loader)
    assert len(loaded) == len(batches) > 1
    for indices, batch in zip(batches.epoch(1), loaded, strict=True):
        again = collate([examples[index] for index in indices])
        assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True))


def test_N05_data_sets_and_collate_pickle():
    examples = encode_pairs(PAIRS, LETTERS, UPPER)
    corpus = ParallelCorpus.disjoint([("a", "b")], [], [])
    for thing in (examples, corpus, LETTERS):
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert pickle.loads(pickle.dumps(collate))([examples[0]]).inputs.tolist() == [[2, 4, 5, 6]]
    views = pickle.loads(pickle.dumps(windows(range(23), 5, 3)))
    assert views[2].inputs.tolist() == [6, 7, 8, 9, 10]
    batches = pickle.loads(pickle.dumps(TokenBudgetBatches(examples.lengths, 17)))
    assert batches.epoch(3) == TokenBudgetBatches(examples.lengths, 17).epoch(3)


INTERACTIVE = """
from functools import partial
from torch.utils.data import DataLoader
from glassformer.data import *
examples = encode_pairs([("ab", "ba"), ("abc", "cb")], SymbolVocabulary.of(["abc"]))
batches = TokenBudgetBatches(examples.lengths, 64).epoch(0)
loader = DataLoader(
    examples, batch_sampler=batches, num_workers=1, multiprocessing_context="spawn",
    collate_fn=partial(collate_pairs, pad_id=0, bos_id=2),
)
print([sorted(batch.targets.tolist()) for batch in loader])
"""


def test_N05_a_spawned_worker_of_an_interactive_session_loads_batches():
    """Like a notebook: the main program has no file that a worker could import."""
    done = subprocess.run(
        [sys.executable, "-c", INTERACTIVE],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[[5, 4, 3], [6, 5, 3]]]"
