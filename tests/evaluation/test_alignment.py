"""Alignments against gold, from attention between pieces to links between words."""

import pytest
import torch
from glassformer.data import train_tokenizer
from glassformer.errors import DataError
from glassformer.evaluation import align, alignment_score, word_attention, word_indices
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

LINKS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 6)))


def test_the_example_of_the_definition():
    """A = 4 links, S = 3, P = S and 2 more; 2 sure and 1 merely possible link found."""
    sure = [{(0, 0), (1, 2), (2, 1)}]
    possible = [{(3, 3), (3, 4)}]
    found = alignment_score([{(0, 0), (1, 2), (3, 3), (0, 5)}], sure, possible)
    assert found.precision == pytest.approx(3 / 4)
    assert found.recall == pytest.approx(2 / 3)
    assert found.aer == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert found == alignment_score(
        [{(0, 0), (1, 2), (3, 3), (0, 5)}], sure, [possible[0] | sure[0]]
    )


def test_a_pair_is_source_then_target():
    assert alignment_score([{(0, 1)}], [{(1, 0)}]).aer == 1


def test_rates_come_from_the_totals():
    """A sentence of 1 link and one of 9: 9 of 10 links are right, and not (0 + 1) / 2."""
    long = {(i, i) for i in range(9)}
    found = alignment_score([{(0, 1)}, long], [{(0, 0)}, long])
    assert (found.precision, found.recall) == (0.9, 0.9)
    assert found.aer == pytest.approx(0.1)


@given(st.lists(st.tuples(LINKS, LINKS, LINKS), min_size=1, max_size=3))
def test_bounds(rows):
    predicted, sure, possible = map(list, zip(*rows, strict=True))
    found = alignment_score(predicted, sure, possible)
    assert 0 <= found.precision <= 1
    assert 0 <= found.recall <= 1
    assert 0 <= found.aer <= 1
    assert alignment_score(sure, sure, possible).aer == 0
    # with sure links alone AER is 1 - F1, which is symmetric
    assert alignment_score(predicted, sure).aer == pytest.approx(
        alignment_score(sure, predicted).aer
    )


def test_no_links_at_all():
    found = alignment_score([set()], [set()])
    assert (found.precision, found.recall, found.aer) == (0, 0, 0)


def test_counts_must_agree():
    with pytest.raises(DataError, match=r"2 sentences, sure ones of 1 and possible ones of 1"):
        alignment_score([set(), set()], [set()])
    with pytest.raises(DataError, match=r"1 sentences, sure ones of 1 and possible ones of 2"):
        alignment_score([set()], [set()], [set(), set()])
    with pytest.raises(DataError, match="no sentences"):
        alignment_score([], [])


def test_each_target_position_points_to_its_strongest_source():
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.0, 0.0, 0.0], [0.2, 0.2, 0.6]])
    assert align(weights) == {(1, 0), (0, 1), (2, 3)}
    with pytest.raises(DataError, match=r"weights of shape \(3, 0\) have no source"):
        align(torch.ones(3, 0))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁So", "it", "▁is", "</s>"], [0, 0, 1, None]),
        (["<s>", "So", "it", "▁is"], [None, 0, 0, 1]),
        (["▁", "K", "atze", "▁da"], [0, 0, 0, 1]),
        (["▁", "▁So", "▁▁is", "▁", "</s>", "<pad>"], [None, 0, 1, None, None, None]),
        (["▁Ka", "<0xC3>", "<0xA4>", "se", "."], [0, 0, 0, 0, 0]),
        ([], []),
    ],
)
def test_words_of_pieces(pieces, words):
    assert word_indices(pieces) == words


@given(st.lists(st.sampled_from(["so", "it", "x'y.", "ä", "  ", "soit", " "]), max_size=7))
def test_words_are_those_that_split_finds(parts):
    """Whatever the pieces of a trained tokenizer, and however many blanks there are."""
    text = " ".join(parts)
    tokenizer = TOKENIZER
    indices = word_indices(tokenizer.pieces(tokenizer.encode(text, bos=True, eos=True)))
    assert indices[0] is indices[-1] is None
    known = [index for index in indices if index is not None]
    assert known == sorted(known)
    assert sorted(set(known)) == list(range(len(text.split())))


TOKENIZER = train_tokenizer(["so it is what it is", "soit was so", "x y soit"], 275)


def test_pieces_of_a_word_are_added_where_attended_to_and_averaged_where_attending():
    weights = torch.tensor(
        [[0.3, 0.3, 0.4, 0.0], [0.1, 0.1, 0.7, 0.1], [0.2, 0.3, 0.3, 0.2]], dtype=torch.float64
    )
    words = word_attention(weights, [0, 0, None], [0, 0, 1, None])
    assert_close(words, torch.tensor([[0.4, 0.55]], dtype=torch.float64))
    # piece by piece the first target piece points to the second word; as a word it does not
    assert align(weights[:1]) == {(2, 0)}
    assert align(word_attention(weights, [0, None, None], [0, 0, 1, None])) == {(0, 0)}


def test_a_word_without_pieces_attends_to_nothing():
    """As a dash between blanks, once its piece is left out."""
    words = word_attention(torch.full((2, 3), 1 / 3), [0, 2], [0, None, 2])
    assert_close(words, torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 1]]) / 3)


def test_word_attention_needs_an_index_for_each_position():
    with pytest.raises(DataError, match=r"shape \(3, 5\) for 2 target and 5 source pieces"):
        word_attention(torch.ones(3, 5), [0, 1], [0, 1, 2, 3, 4])
    assert word_attention(torch.ones(3, 5), [None] * 3, [0] * 5).shape == (0, 1)


def test_from_the_attention_of_a_model_to_links():
    """Captured weights have the shape that is needed, one map for each head."""
    from glassformer import capture_attention
    from support.core import ids, scrambled, translator_config

    torch.manual_seed(3)
    model = scrambled(translator_config())
    with capture_attention(model) as maps, torch.no_grad():
        model(ids(1, 7), ids(1, 5))
    weights = maps["decoder.blocks.1.cross_attn"][0]
    links = align(weights.mean(dim=0))
    assert {target for _, target in links} == set(range(5))
    assert {source for source, _ in links} <= set(range(7))
