"""Tatoeba: the known edition and no other, its published parts, no leak in either direction."""

import hashlib

import pytest
from glassformer.data import download, load_tatoeba, tatoeba
from glassformer.errors import DataError

# train, dev, test, and how many the lower parts lost; with English as source nothing is lost
FIGURES = {
    ("deu-eng", "eng"): (164_300, 1_658, 3_239, 0),
    ("deu-eng", None): (163_606, 1_658, 3_239, 694),
    ("cmn-eng", "eng"): (23_350, 228, 448, 0),
    ("cmn-eng", "cmn"): (23_238, 227, 448, 113),
}


def english_part(sentence):
    """The published rule, in the words of the data set's description."""
    bucket = int(hashlib.md5(sentence.encode("utf-8")).hexdigest(), 16) % 1000
    return "test" if bucket < 20 else "dev" if bucket < 30 else "train"


@pytest.mark.data
@pytest.mark.parametrize(("pair", "source"), FIGURES)
def test_the_parts_are_the_published_ones_and_share_no_source(pair, source):
    file = tatoeba.EDITIONS[pair].file
    if not file.path.is_file():
        pytest.skip(f"{file.data_set}/{file.name} is not in the data folder")
    corpus = load_tatoeba(pair, source=source)
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    assert (*map(len, parts.values()), corpus.n_shared) == FIGURES[pair, source]
    assert corpus.n_empty == 0
    sources = {name: {pair[0] for pair in part} for name, part in parts.items()}
    assert not sources["train"] & (sources["dev"] | sources["test"])
    assert not sources["dev"] & sources["test"]
    english = 0 if source == "eng" else 1
    for name, part in parts.items():
        assert all(english_part(pair[english]) == name for pair in part[:997])
    if (pair, source) == ("deu-eng", None):
        assert corpus.train[0] == ("Hallo!", "Hi.")
        assert ("Grüß Gott!", "Hi.") in corpus.train[:5]
    assert "CC BY 2.0 France" in corpus.attribution
    assert "manythings.org/anki and tatoeba.org" in corpus.attribution


def write_edition(monkeypatch, tmp_path, pair, data):
    """A small file in the place of the real one, with its own checksum."""
    edition = tatoeba.EDITIONS[pair]
    digest = hashlib.sha256(data).hexdigest()
    file = download.RemoteFile(edition.file.data_set, edition.file.name, "http://x", digest)
    monkeypatch.setitem(tatoeba.EDITIONS, pair, edition._replace(file=file))
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    file.path.parent.mkdir()
    file.path.write_bytes(data)
    return file.path


def test_translations_of_one_sentence_stay_together(monkeypatch, tmp_path):
    english = [f"Sentence {i % 307}." for i in range(701)]
    rows = [f"{sentence}\t句子{i}\tCC-BY (someone)" for i, sentence in enumerate(english)]
    write_edition(monkeypatch, tmp_path, "cmn-eng", "\n".join(rows).encode())
    corpus = load_tatoeba("cmn-eng")
    parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    assert sum(map(len, parts.values())) == 701
    for name, part in parts.items():
        assert part
        assert {english_part(target) for _, target in part} == {name}
    assert corpus.n_shared == 0


def test_one_source_with_two_translations_in_two_parts_goes_to_the_higher(monkeypatch, tmp_path):
    sentences = {name: [] for name in ("train", "dev", "test")}
    for i in range(997):
        sentences[english_part(f"Sentence {i}.")].append(f"Sentence {i}.")
    rows = [f"{sentences[name][0]}\t同一\tx" for name in ("train", "dev", "test")]
    rows += [f"{sentences[name][1]}\t{name}\tx" for name in ("train", "dev", "test")]
    write_edition(monkeypatch, tmp_path, "cmn-eng", "\n".join(rows).encode())
    corpus = load_tatoeba("cmn-eng")
    assert [pair[0] for pair in corpus.train] == ["train"]
    assert [pair[0] for pair in corpus.dev] == ["dev"]
    assert [pair[0] for pair in corpus.test] == ["同一", "test"]
    assert corpus.n_shared == 2
    assert load_tatoeba("cmn-eng", source="eng").n_shared == 0


def test_an_edition_that_is_not_the_known_one_is_refused(monkeypatch, tmp_path):
    path = write_edition(monkeypatch, tmp_path, "deu-eng", b"PK")
    path.write_bytes(b"a newer edition")
    with pytest.raises(DataError, match=r"deu-eng\.zip: 15 bytes that are not tatoeba-deu-eng"):
        load_tatoeba("deu-eng")


def test_absent_data_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    for pair, place in (("deu-eng", r"jhamburg.*deu-eng\.zip"), ("cmn-eng", r"lexical.*cmn\.txt")):
        with pytest.raises(DataError, match=rf"is not there.*download=True, get http.*{place} by"):
            load_tatoeba(pair)
    assert list(tmp_path.iterdir()) == []


def test_other_languages_are_refused(no_shape_checks):
    with pytest.raises(DataError, match="pair='fra-eng' must be one of deu-eng, cmn-eng"):
        load_tatoeba("fra-eng")
    with pytest.raises(DataError, match="source='cmn' must be 'deu' or 'eng' for deu-eng"):
        load_tatoeba("deu-eng", source="cmn")
