"""Parallel text: line n of one side belongs to line n of the other, and nothing leaks."""

from pathlib import Path

import pytest
from glassformer.data import (
    ParallelCorpus,
    load_pairs,
    load_tsv,
    read_pairs,
    read_tsv,
    split_of,
    split_pairs,
)
from glassformer.errors import DataError
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def files(tmp_path: Path):
    """Write a source and a target file, each from its bytes."""

    def write(source: bytes | str, target: bytes | str) -> tuple[Path, Path]:
        paths = tmp_path / "text.de", tmp_path / "text.en"
        for path, data in zip(paths, (source, target), strict=True):
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return paths

    return write


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\r"])
@pytest.mark.parametrize("in_target", [False, True])
def test_D01_a_separator_inside_a_sentence_shifts_no_pair(files, inside, in_target):
    """Line 2 of 3 holds it: 3 pairs, the character kept, on either side and in a table."""
    plain, other = ["eins", "zwei", "drei"], ["one", f"two{inside}two", "three"]
    sides = (plain, other) if in_target else (other, plain)
    expected = list(zip(*sides, strict=True))
    paths = files("\n".join(sides[0]) + "\n", "\n".join(sides[1]) + "\n")
    assert read_pairs(*paths) == (expected, 0)
    paths[0].write_bytes("\n".join("\t".join(pair) for pair in expected).encode())
    assert read_tsv(paths[0]) == (expected, 0)


@pytest.mark.parametrize(("source", "target"), [("a\nb\nc\n", "a\nb\nc\nd\n"), ("a\nb", "a")])
def test_D02_different_numbers_of_lines_are_refused(files, source, target):
    """Both counts and both names, whichever is longer."""
    paths = files(source, target)
    counts = [len(side.split()) for side in (source, target)]
    message = rf"text\.de has {counts[0]} lines and .*text\.en has {counts[1]}; line n"
    for load in (read_pairs, load_pairs):
        with pytest.raises(DataError, match=message):
            load(*paths)


@pytest.mark.parametrize("empty", ["", "  ", "\t", "\u00a0", "\r"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n \n\n"])
def test_D03_an_empty_line_drops_its_pair_on_both_sides(files, empty, end):
    """Line 2 is empty in one file only; one of the files may end with empty lines."""
    one, other = f"eins\n{empty}\ndrei{end}", "one\ntwo\nthree"
    assert read_pairs(*files(one, other)) == ([("eins", "one"), ("drei", "three")], 1)
    assert read_pairs(*files(other, one)) == ([("one", "eins"), ("three", "drei")], 1)


def test_D03_an_empty_line_that_has_a_partner_is_counted(files):
    """Both files have four lines, so the last two belong together."""
    assert read_pairs(*files("a\n\nc\n\n", "w\nx\n\nz\n")) == ([("a", "w")], 3)


def test_D03_in_a_table(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"eins\tone\n\ttwo\nzwei\t \n\nvier\tfour\n")
    assert read_tsv(path) == ([("eins", "one"), ("vier", "four")], 3)


def test_D06_one_latin1_byte_names_file_and_line(files):
    paths = files("gut\nbesser\nsch\u00f6n\n", "good\nbetter\nfair\n")
    paths[0].write_bytes("gut\nbesser\nsch\u00f6n\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"text\.de, line 3: byte 0xf6 at position 3.*iconv"):
        read_pairs(*paths)
    paths[0].write_bytes("gut\tgood\nsch\u00f6n\tfair".encode("latin-1"))
    with pytest.raises(DataError, match=r"text\.de, line 2: byte 0xf6"):
        read_tsv(paths[0])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_D06_another_encoding_is_refused_on_either_side(files, encoding):
    plain, encoded = b"eins\nzwei\n", "one\ntwo\n".encode(encoding)
    for sides, name in (((encoded, plain), "de"), ((plain, encoded), "en")):
        with pytest.raises(DataError, match=rf"text\.{name}, line 1: .*iconv -f UTF-16"):
            read_pairs(*files(*sides))


def test_marks_and_line_ends_of_windows(files):
    marked = b"\xef\xbb\xbfeins\r\nzwei\r\n"
    assert read_pairs(*files(marked, "one\ntwo")).pairs == [("eins", "one"), ("zwei", "two")]


def test_columns_of_a_table_are_chosen_and_others_ignored(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"\xef\xbb\xbfone\teins\tby A\r\ntwo\tzwei\r\n")
    assert read_tsv(path).pairs == [("one", "eins"), ("two", "zwei")]
    assert read_tsv(path, columns=(1, 0)).pairs == [("eins", "one"), ("zwei", "two")]
    with pytest.raises(DataError, match=r"pairs\.tsv, line 2: has 2 column.*needs 3"):
        read_tsv(path, columns=(0, 2))
    for columns in ((0, 0), (-1, 0)):
        with pytest.raises(DataError, match="must be two different ones"):
            read_tsv(path, columns=columns)


def test_a_missing_file_is_named(files, tmp_path):
    paths = files("a", "b")
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read"):
        read_pairs(paths[0], tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"gone\.tsv: cannot be read"):
        load_tsv(tmp_path / "gone.tsv")


def test_loading_splits_by_the_source(files):
    """One source with several targets stays in one part."""
    pairs = [(f"Satz {i % 211}", f"sentence {i}") for i in range(401)]
    paths = files(*("\n".join(side) for side in zip(*pairs, strict=True)))
    corpus = load_pairs(*paths)
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    assert sorted(sum(parts.values(), ())) == sorted(pairs)
    for name, part in parts.items():
        assert {split_of(source) for source, _ in part} == {name}
        assert list(part) == [pair for pair in pairs if pair in set(part)]
    assert (corpus.n_empty, corpus.n_shared, corpus.n_dropped) == (0, 0, 0)
    paths[0].write_bytes("\n".join("\t".join(pair) for pair in pairs).encode() + b"\nx\t\n")
    table = load_tsv(paths[0])
    assert (table.train, table.dev, table.test) == (corpus.train, corpus.dev, corpus.test)
    assert table.n_empty == table.n_dropped == 1


def test_too_few_pairs_for_three_parts_are_refused(files):
    with pytest.raises(DataError, match=r"text\.en: 2 pairs gave .* 200 pairs or more"):
        load_pairs(*files("a\nb", "c\nd"))


words = st.sampled_from(["ein", "zwei", "drei", "vier", "acht"])


@given(st.lists(st.tuples(words, words), max_size=40))
def test_no_source_is_in_two_parts_even_if_split_by_the_target(pairs):
    by_target = {"ein": "test", "zwei": "dev"}
    corpus = split_pairs(pairs, lambda pair: by_target.get(pair[1], "train"))
    train, dev, test = (
        {source for source, _ in part} for part in (corpus.train, corpus.dev, corpus.test)
    )
    assert not train & dev | train & test | dev & test
    assert list(corpus.test) == [pair for pair in pairs if pair[1] == "ein"]
    kept = len(corpus.train) + len(corpus.dev) + len(corpus.test)
    assert corpus.n_shared == len(pairs) - kept
    assert train | dev | test == {source for source, _ in pairs}


def test_given_parts_are_made_disjoint():
    corpus = ParallelCorpus.disjoint(
        train=[("a", "1"), ("b", "2"), ("c", "3")],
        dev=[("b", "4"), ("d", "5")],
        test=[("c", "6"), ("d", "7"), ("d", "8")],
        n_empty=2,
        attribution="us",
    )
    assert corpus.train == (("a", "1"),)
    assert corpus.dev == (("b", "4"),)
    assert len(corpus.test) == 3
    assert (corpus.n_shared, corpus.n_dropped, corpus.attribution) == (3, 5, "us")
