"""Phones and words: the nearest pronunciation counts, and every phone weighs the same."""

import sys

import pytest
from glassformer.errors import ConfigError, DataError
from glassformer.evaluation import error_rates, phone_error_rate, word_error_rate
from hypothesis import given
from hypothesis import strategies as st


def phones(text):
    return text.split()


def test_the_nearest_pronunciation_counts():
    """``read``: two ways to say it; each is right, and its own length is what one divides by."""
    ways = [phones("R EH1 D"), phones("R IY1 D")]
    for said in ways:
        assert error_rates([said], [ways]).edits == 0
    found = error_rates([phones("R IY1")], [ways])
    assert (found.edits, found.n_phones, found.wrong_words, found.n_words) == (1, 3, 1, 1)
    short, long = phones("B AE1"), phones("B AE1 T AH0 L D")
    found = error_rates([phones("B AE1 T AH0 L")], [[short, long]])
    assert (found.edits, found.n_phones) == (1, 6)
    assert found == error_rates([phones("B AE1 T AH0 L")], [[long, short]])


def test_of_equally_near_ones_the_longest_is_the_measure():
    ways = [phones("K AE1"), phones("K AE1 T S")]
    for order in (ways, ways[::-1]):
        assert error_rates([phones("K AE1 T")], [order]).n_phones == 4


def test_rates_come_from_the_totals():
    """1 of 2 phones and 1 of 8 are 2 of 10: 0.2, and not the mean of 0.5 and 0.125."""
    said = [phones("A B"), phones("A B C D E F G H"), phones("K")]
    right = [[phones("A X")], [phones("A B C D E F G X")], [phones("K")]]
    assert phone_error_rate(said, right) == pytest.approx(2 / 11)
    assert word_error_rate(said, right) == pytest.approx(2 / 3)
    assert phone_error_rate(said[:2], right[:2]) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("said", "edits"),
    [("K AE1 T", 0), ("K AE0 T", 1), ("AE1 T", 1), ("K AE1 T S", 1), ("T AE1 K", 2), ("", 3)],
)
def test_edits(said, edits):
    assert error_rates([phones(said)], [[phones("K AE1 T")]]).edits == edits


def test_too_much_said_is_more_than_everything_wrong():
    assert phone_error_rate([phones("A B C")], [[phones("X")]]) == 3


def table(said, right):
    """Edits by the textbook table."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(said, 1):
        above, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]


SOUNDS = st.lists(st.sampled_from(["AA1", "B", "CH"]), max_size=7)


@given(SOUNDS, st.lists(SOUNDS.filter(bool), min_size=1, max_size=3))
def test_edits_are_those_of_the_table(said, ways):
    found = error_rates([said], [ways])
    assert found.edits == min(table(said, way) for way in ways)
    assert (found.wrong_words == 0) == (said in ways)


def test_bad_input_is_refused(monkeypatch):
    right = [[phones("K AE1 T")]]
    with pytest.raises(DataError, match="2 hypotheses and pronunciations of 1 words"):
        error_rates([phones("K"), phones("T")], right)
    with pytest.raises(DataError, match="no words"):
        error_rates([], [])
    with pytest.raises(DataError, match="word 0: a string was given where a list of phones"):
        error_rates(["K AE1 T"], right)
    with pytest.raises(DataError, match="word 0: a string was given where a list of phones"):
        error_rates([phones("K AE1 T")], [phones("K AE1 T")])
    for ways in ([], [[]], [phones("K"), []]):
        with pytest.raises(DataError, match="word 0: a pronunciation is missing or empty"):
            error_rates([phones("K")], [ways])
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(ConfigError, match="need rapidfuzz"):
        error_rates([phones("K")], right)
