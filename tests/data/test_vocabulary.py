"""A vocabulary of symbols: exact round trip, four special ids, no symbol becomes one of them."""

import json
import pickle

import pytest
import torch
from glassformer.data import SymbolVocabulary
from glassformer.errors import TokenizerError
from hypothesis import given
from hypothesis import strategies as st

LETTERS = SymbolVocabulary.of(["don't", "hello"])
PHONES = SymbolVocabulary(("AH", "HH", "L", "OW"))


def test_ids_follow_the_sorted_symbols_after_the_specials():
    assert LETTERS.symbols == ("'", "d", "e", "h", "l", "n", "o", "t")
    assert LETTERS.encode("hello") == [7, 6, 8, 8, 10]
    assert LETTERS.vocab_size == 12
    assert PHONES.encode(("HH", "AH", "L", "OW"), bos=True, eos=True) == [2, 5, 4, 6, 7, 3]
    assert PHONES.encode_lines([("HH", "OW"), ()], eos=True) == [[5, 7, 3], [3]]


symbol = st.text(min_size=1, max_size=3)


@given(st.lists(st.lists(symbol, min_size=1, max_size=5), min_size=1, max_size=5))
def test_round_trip_is_exact(sequences):
    vocabulary = SymbolVocabulary.of(sequences)
    for symbols in sequences:
        ids = vocabulary.encode(symbols, bos=True, eos=True)
        assert vocabulary.decode(ids) == symbols
        assert vocabulary.decode(torch.tensor(ids)) == symbols
        assert min(ids[1:-1]) > 3


def test_S02_pad_is_not_unk_and_an_unknown_symbol_is_unk():
    assert (PHONES.pad_id, PHONES.unk_id, PHONES.bos_id, PHONES.eos_id) == (0, 1, 2, 3)
    assert PHONES.encode(("HH", "ZH", "L")) == [5, 1, 6]
    assert PHONES.decode([2, 5, 1, 6, 3, 0, 0]) == ["HH", "\ufffd", "L"]
    assert PHONES.pieces([0, 1, 2, 3, 7]) == ["<pad>", "<unk>", "<s>", "</s>", "OW"]


@pytest.mark.parametrize("marker", ["</s>", "<s>", "<pad>", "<unk>"])
def test_G23_a_symbol_spelt_like_a_special_one_is_not_it(marker):
    assert PHONES.encode((marker,)) == [PHONES.unk_id]
    assert SymbolVocabulary((marker,)).encode((marker,)) == [4]


@pytest.mark.parametrize("symbols", [(), ("a", "b", "a"), ("a", "")])
def test_symbols_that_make_no_vocabulary_are_refused(symbols):
    with pytest.raises(TokenizerError, match=rf"{len(symbols)} symbols, {len(set(symbols))} of"):
        SymbolVocabulary(symbols)


@pytest.mark.parametrize("bad", [-1, 8])
def test_ids_outside_the_vocabulary_are_refused(bad):
    for method in (PHONES.decode, PHONES.pieces):
        with pytest.raises(TokenizerError, match=f"id {bad} is outside the vocabulary of 8"):
            method([5, bad])


def test_save_load_pickle_and_compare(tmp_path):
    path = tmp_path / "letters.json"
    vocabulary = SymbolVocabulary.of(["größe 漢\u2028'\""])
    vocabulary.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["letters.json"]
    for copy in (SymbolVocabulary.load(path), pickle.loads(pickle.dumps(vocabulary))):
        assert copy == vocabulary
        assert hash(copy) == hash(vocabulary)
        assert copy.encode("größe") == vocabulary.encode("größe")
    assert vocabulary != LETTERS
    assert repr(PHONES) == "SymbolVocabulary(symbols=('AH', 'HH', 'L', 'OW'))"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"symbols": "abc"}', '{"symbols": [1]}', '{"symbols": []}']
)
def test_load_errors_name_the_file(tmp_path, content):
    path = tmp_path / "letters.json"
    with pytest.raises(TokenizerError, match=r"letters\.json: cannot be read \(No such file"):
        SymbolVocabulary.load(path)
    path.write_text(content)
    with pytest.raises(TokenizerError, match=r"letters\.json: is no vocabulary"):
        SymbolVocabulary.load(path)


def test_the_file_is_plain_json(tmp_path):
    PHONES.save(tmp_path / "phones.json")
    assert json.loads((tmp_path / "phones.json").read_text()) == {
        "symbols": ["AH", "HH", "L", "OW"]
    }
