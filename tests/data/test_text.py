"""Reading text strictly and splitting it without leaks."""

import hashlib
from pathlib import Path

import pytest
from glassformer.data import (
    Corpus,
    data_root,
    load_text,
    load_tiny_shakespeare,
    read_lines,
    split_of,
)
from glassformer.errors import DataError
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def file(tmp_path: Path):
    def write(data: bytes) -> Path:
        path = tmp_path / "text.txt"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\r"])
def test_D01_only_a_newline_ends_a_line(file, inside):
    """D01: str.splitlines would make four lines of these three and shift the third."""
    text = f"one\ntwo{inside}two\nthree\n"
    assert len(text.splitlines()) == 4
    assert read_lines(file(text.encode())) == ["one", f"two{inside}two", "three"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"\n", [""]),
        ("ä\n漢\n".encode(), ["ä", "漢"]),
    ],
)
def test_line_ends_marks_and_blank_lines(file, data, lines):
    assert read_lines(file(data)) == lines


def test_D06_one_latin1_byte_names_file_and_line(file):
    """D06: a latin-1 byte in line 3."""
    path = file("gut\nbesser\nschön\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"text\.txt, line 3: byte 0xf6 at position 3.*iconv"):
        read_lines(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_D06_utf16_is_refused_with_and_without_its_mark(file, encoding):
    """D06: UTF-16 without a mark is valid UTF-8 full of NULs, which must not pass."""
    with pytest.raises(DataError, match=r"text\.txt, line 1: .*iconv -f UTF-16"):
        read_lines(file("In the beginning\nGod\n".encode(encoding)))


def test_missing_empty_and_folder_are_clear_errors(file, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt: cannot be read \(No such file"):
        read_lines(tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match=r"text\.txt: is empty"):
        read_lines(file(b""))
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path)


clean_line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\x00")).filter(
    lambda line: not line.endswith("\r") and not line.startswith("\ufeff")
)


@given(st.lists(clean_line, min_size=1))
def test_what_was_written_is_what_is_read(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "text.txt"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    assert read_lines(path) == lines


def test_split_depends_on_the_text_alone_and_never_moves():
    """Recorded: a change of these would leak old test lines into new training sets."""
    assert [split_of(text) for text in ("verse 0", "verse 3", "verse 18", "")] == RECORDED
    share = [split_of(f"verse {i}") for i in range(20_011)]
    assert 0.89 < share.count("train") / len(share) < 0.91
    assert 0.04 < share.count("dev") / len(share) < 0.06


RECORDED = ["train", "dev", "test", "train"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_equal_texts_share_a_part(texts):
    assert [split_of(text) for text in texts + texts] == [split_of(text) for text in texts] * 2


def test_load_text_splits_lines_and_keeps_order(file):
    lines = [f"line {i}" for i in range(401)]
    doubled = [line for line in lines for _ in range(2)]
    corpus = load_text(file("\n\n".join(doubled).encode()))
    assert sorted(corpus.train + corpus.dev + corpus.test) == sorted(doubled)
    assert not set(corpus.train) & set(corpus.dev) | set(corpus.train) & set(corpus.test)
    for part in (corpus.train, corpus.dev, corpus.test):
        assert list(part) == [line for line in doubled if line in set(part)]


def test_load_text_refuses_a_text_too_small_to_validate_on(file):
    with pytest.raises(DataError, match=r"2 distinct lines gave .* 200 lines or more"):
        load_text(file(b"one\ntwo\none\n"))


def test_a_corpus_cannot_be_changed():
    with pytest.raises(AttributeError):
        Corpus((), (), ()).train = ("x",)  # type: ignore[misc]


def test_tiny_shakespeare_absent_or_damaged_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"karpathy/char-rnn.*GLASSFORMER_DATA"):
        load_tiny_shakespeare()
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("First Citizen:\nBefore we")
    with pytest.raises(
        DataError, match=r"input\.txt: 24 bytes that are not tinyshakespeare.*delete"
    ):
        load_tiny_shakespeare()


@pytest.mark.data
def test_tiny_shakespeare_has_its_published_split():
    path = data_root() / "tinyshakespeare" / "input.txt"
    if not path.is_file():
        pytest.skip("Tiny Shakespeare is not in the data folder")
    corpus = load_tiny_shakespeare()
    train, dev = "\n".join(corpus.train), "\n".join(corpus.dev)
    assert (len(train), len(dev), corpus.test) == (1_003_854, 111_540, ())
    assert (
        hashlib.sha256((train + dev).encode()).digest()
        == hashlib.sha256(path.read_bytes()).digest()
    )
