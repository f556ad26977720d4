"""The tokenizer: exact round trip, four special ids, clear limits."""

import io
import pickle
import re
import sys

import jaxtyping
import pytest
import sentencepiece
import torch
from glassformer.data import Tokenizer, extend_tokenizer, load_king_james, train_tokenizer
from glassformer.errors import ConfigError, TokenizerError
from glassformer.nn.embeddings import TokenEmbedding
from hypothesis import example, given
from hypothesis import strategies as st

LINES = load_king_james().dev[:307]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request) -> Tokenizer:
    return train_tokenizer(LINES, 701, model_type=request.param)


@pytest.fixture(scope="module")
def without_bytes() -> Tokenizer:
    return train_tokenizer(LINES, 401, byte_fallback=False)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))


@given(text)
@example("  two  spaces, a\nnewline\tand a tab  ")
@example("</s><s><pad><unk><0x0A>")
@example("cat 🙂 漢字 é e\u0301 \ufffd \x00 \u2585 \u2028 \ufeff")
@example(" ")
@example("")
def test_round_trip_is_exact(tokenizer, written):
    assert tokenizer.decode(tokenizer.encode(written)) == written


@given(text)
def test_no_text_gives_a_special_id(tokenizer, written):
    special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id}
    assert not special & set(tokenizer.encode(written))


def test_the_one_sign_that_is_lost(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a b"


@pytest.mark.parametrize("marker", ["</s>", "<s>", "<pad>", "<unk>", "the cat</s>", "</s></s>"])
def test_G23_user_text_never_becomes_a_control_token(tokenizer, without_bytes, marker):
    """G23: the end marker typed by a user is spelt out."""
    for each in (tokenizer, without_bytes):
        assert not {each.eos_id, each.bos_id, each.pad_id} & set(each.encode(marker))
        assert each.eos_id == 3
    assert tokenizer.decode(tokenizer.encode(marker)) == marker


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_S01_vocabulary_larger_than_the_corpus_states_the_maximum(model_type, byte_fallback):
    """S01: the stated maximum works and one more does not."""
    options = {"model_type": model_type, "byte_fallback": byte_fallback}
    lines = ["the cat sat", "the dog sat", "a cat ran", "a dog ran"]
    with pytest.raises(TokenizerError, match="vocab_size=5000 is more than this text") as error:
        train_tokenizer(lines, 5000, **options)
    maximum = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train_tokenizer(lines, maximum, **options).vocab_size == maximum
    with pytest.raises(TokenizerError, match=f"at most {maximum}"):
        train_tokenizer(lines, maximum + 1, **options)


def test_a_vocabulary_too_small_states_the_minimum():
    with pytest.raises(TokenizerError, match="vocab_size=41 cannot hold") as error:
        train_tokenizer(LINES, 41, byte_fallback=False)
    minimum = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert train_tokenizer(LINES, minimum, byte_fallback=False).vocab_size == minimum


@pytest.mark.parametrize("size", [0, -7])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(TokenizerError, match=f"vocab_size={size}"):
        train_tokenizer(LINES, size)


def test_S02_S03_all_four_special_ids_are_set_and_differ(tokenizer, without_bytes):
    """S02, S03: pad is not unk, and none is missing."""
    for each in (tokenizer, without_bytes):
        assert (each.pad_id, each.unk_id, each.bos_id, each.eos_id) == (0, 1, 2, 3)
        assert each.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_S02_an_unknown_character_is_unk_and_not_pad(without_bytes):
    """S02: without byte fallback the middle of the sentence is unk, which padding is not."""
    ids = without_bytes.encode("the 漢 earth")
    assert ids.count(without_bytes.unk_id) == 1
    assert without_bytes.pad_id not in ids


def _raw_model(**special_ids: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=211,
        minloglevel=2,
        **special_ids,
    )
    return model.getvalue()


@pytest.mark.parametrize("special_ids", [{}, {"pad_id": 3, "eos_id": -1}, {"bos_id": -1}])
def test_S04_a_model_that_lacks_a_special_id_is_refused(tmp_path, special_ids):
    """S04: the default model has pad -1, which an embedding reads as its last row."""
    path = tmp_path / "default.model"
    path.write_bytes(_raw_model(**special_ids))
    with pytest.raises(TokenizerError, match=r"default\.model: special ids .*: -1"):
        Tokenizer.load(path)


def test_S04_the_last_row_of_an_embedding_is_alive(tokenizer):
    """S04: the padding id of our tokenizers is row 0; the last row has values and learns."""
    embedding = TokenEmbedding(tokenizer.vocab_size, 7, pad_id=tokenizer.pad_id)
    last = tokenizer.vocab_size - 1
    embedding(torch.tensor([tokenizer.pad_id, last])).sum().backward()
    assert embedding.weight[last].abs().min() > 0
    assert embedding.weight.grad[last].tolist() == [1.0] * 7
    assert embedding.weight.grad[tokenizer.pad_id].tolist() == [0.0] * 7
    with pytest.raises(ConfigError, match="pad_id=-1"):
        TokenEmbedding(tokenizer.vocab_size, 7, pad_id=-1)


@pytest.mark.parametrize("written", ["cat 🙂", "🙂🙃 a 漢", "🙂"])
def test_S07_the_unknown_surface_is_stable(tokenizer, without_bytes, written):
    """S07: round 2 gives what round 1 gave; with byte fallback nothing is unknown."""
    assert tokenizer.decode(tokenizer.encode(written)) == written
    once = without_bytes.decode(without_bytes.encode(written))
    assert without_bytes.decode(without_bytes.encode(once)) == once
    assert once != written, "what is unknown never counts as a match with a reference"


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_S08_a_rare_letter_survives(model_type):
    """S08: 8000 lines and one with a rare letter; the default coverage would drop it."""
    lines = ["the cat sat on the mat"] * 8000 + ["the cæt"]
    tokenizer = train_tokenizer(lines, 17, model_type=model_type, byte_fallback=False)
    ids = tokenizer.encode("æ")
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == "æ"


def test_a_long_line_is_not_skipped():
    """The trainer's own default silently ignores lines of more than 4192 bytes."""
    tokenizer = train_tokenizer(["ab " * 3000 + "zyx", "ab"], 11, byte_fallback=False)
    assert tokenizer.unk_id not in tokenizer.encode("zyx")


def test_training_is_deterministic_silent_and_leaves_no_files(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first = train_tokenizer(iter(LINES), 503)
    second = train_tokenizer(list(LINES), 503)
    assert first.to_bytes() == second.to_bytes()
    with pytest.raises(TokenizerError):
        train_tokenizer(LINES, 50_000)
    with pytest.raises(TokenizerError):
        Tokenizer(b"junk")
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lines", [[], [""], ["", ""]])
def test_no_text_is_a_clear_error(lines):
    with pytest.raises(TokenizerError, match="no text to train on"):
        train_tokenizer(lines, 301)


def test_one_string_is_not_a_list_of_lines():
    with pytest.raises(TokenizerError, match="lines is one string"):
        train_tokenizer("In the beginning", 301)


def test_half_a_surrogate_pair_is_no_text(tokenizer):
    with pytest.raises(TokenizerError, match=r"'\\ud83d' at position 1 is half of a surrogate"):
        tokenizer.encode("a\ud83d")
    with pytest.raises(TokenizerError, match="at position 1 is half of a surrogate"):
        train_tokenizer(["a\ud83d"], 301)
    with pytest.raises(TokenizerError, match="at position 1 is half of a surrogate"):
        tokenizer.encode_lines(["the", "a\ud83d"])


def test_bos_and_eos_on_request(tokenizer):
    plain = tokenizer.encode("the earth")
    assert tokenizer.encode("the earth", bos=True, eos=True) == [2, *plain, 3]
    assert tokenizer.encode_lines(["the earth", ""], eos=True) == [[*plain, 3], [3]]
    assert tokenizer.encode_stream(["the earth", "the"]) == [*plain, 3, *tokenizer.encode("the"), 3]
    assert tokenizer.decode([2, *plain, 3, 0, 0]) == "the earth"


@given(st.lists(text, max_size=7), st.booleans(), st.booleans())
def test_many_lines_at_once_are_encoded_as_one_by_one(tokenizer, lines, bos, eos):
    one_by_one = [tokenizer.encode(line, bos=bos, eos=eos) for line in lines]
    assert tokenizer.encode_lines(iter(lines), bos=bos, eos=eos) == one_by_one


def test_decode_takes_tensors_and_pieces_name_each_id(tokenizer):
    ids = tokenizer.encode("the earth")
    assert tokenizer.decode(torch.tensor(ids)) == "the earth"
    assert "".join(tokenizer.pieces(ids)) == "\u2581the\u2581earth"


@pytest.mark.parametrize("bad", [-1, 701])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, bad):
    with pytest.raises(TokenizerError, match=f"id {bad} is outside the vocabulary of 701"):
        tokenizer.decode([5, bad])


def test_save_load_pickle_and_compare(tokenizer, tmp_path):
    path = tmp_path / "verses.model"
    path.write_bytes(b"an older file")
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["verses.model"]
    for copy in (Tokenizer.load(path), pickle.loads(pickle.dumps(tokenizer))):
        assert copy == tokenizer
        assert hash(copy) == hash(tokenizer)
        assert copy.encode("Jesus wept.") == tokenizer.encode("Jesus wept.")
    assert tokenizer != train_tokenizer(LINES, 499)
    assert repr(tokenizer) == "Tokenizer(vocab_size=701)"


def test_load_errors_name_the_file(tokenizer, tmp_path):
    path = tmp_path / "verses.model"
    with pytest.raises(TokenizerError, match=r"verses\.model: cannot be read \(No such file"):
        Tokenizer.load(path)
    for damaged in (b"", b"junk", tokenizer.to_bytes()[:-5]):
        path.write_bytes(damaged)
        with pytest.raises(TokenizerError, match=rf"verses\.model: {len(damaged)} bytes are no"):
            Tokenizer.load(path)


def test_missing_sentencepiece_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(TokenizerError, match=r'pip install "glassformer\[data\]"'):
        train_tokenizer(LINES, 301)


def test_a_model_type_that_cannot_round_trip_is_refused():
    """sentencepiece also knows "word" and "char"; the type checker is off to get that far."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(TokenizerError, match="model_type='word' must be"):
            train_tokenizer(LINES, 301, model_type="word")  # type: ignore[arg-type]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_S03_special_ids_are_checked_after_training(monkeypatch):
    """S03: a trainer that places them elsewhere is found out."""
    monkeypatch.setattr(Tokenizer, "eos_id", property(lambda self: 7))
    with pytest.raises(TokenizerError, match="did not keep the special ids"):
        train_tokenizer(LINES, 401)


def test_new_pieces_are_never_cut_and_old_ids_stay(tokenizer, tmp_path):
    long = "x" * 300
    grown = extend_tokenizer(tokenizer, ["<tool_call>", long])
    size = tokenizer.vocab_size
    assert grown.vocab_size == size + 2
    assert grown.pieces([size, size + 1]) == ["<tool_call>", long]
    assert grown.encode(f"a <tool_call> b {long}").count(size) == 1
    assert grown.encode(f"a <tool_call> b {long}").count(size + 1) == 1
    for line in [*LINES, f"a <tool_call> b {long}"]:
        assert grown.decode(grown.encode(line)) == line
    assert all(grown.encode(line) == tokenizer.encode(line) for line in LINES)
    grown.save(tmp_path / "grown.model")
    again = Tokenizer.load(tmp_path / "grown.model")
    assert again == grown
    assert again.encode("a <tool_call>") == grown.encode("a <tool_call>")
    assert extend_tokenizer(tokenizer, "ä€<x>").pieces([size]) == ["ä€<x>"]


@pytest.mark.parametrize("pieces", [[], [""], ["two words"], ["<s>"], ["<t>", "<t>"], ["a\u2581"]])
def test_pieces_that_cannot_be_added(tokenizer, pieces):
    with pytest.raises(TokenizerError, match="piece"):
        extend_tokenizer(tokenizer, pieces)
