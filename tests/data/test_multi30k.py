"""Multi30k: the terms come first, then damage is noticed, then nothing leaks."""

import gzip

import pytest
from glassformer.data import load_multi30k, multi30k
from glassformer.errors import DataError

N_LINES = {"train": 29, "val": 7, "test_2016_flickr": 5}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Small files in the form of the real ones."""
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    monkeypatch.setattr(multi30k, "N_LINES", N_LINES)
    (tmp_path / "multi30k").mkdir()
    for part, count in N_LINES.items():
        for language in ("de", "en"):
            lines = "".join(f"{language} {part} {i}\n" for i in range(count))
            write(tmp_path / "multi30k", part, language, lines)
    return tmp_path / "multi30k"


def write(folder, part, language, text):
    (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(text.encode()))


def test_the_terms_are_shown_until_they_are_accepted(folder):
    with pytest.raises(DataError, match=r"non-commercial research and/or edu.*accept_terms=True"):
        load_multi30k()
    with pytest.raises(DataError, match="researchers and educators"):
        load_multi30k(download=True)


@pytest.mark.usefixtures("no_shape_checks")
def test_another_language_is_refused(folder):
    with pytest.raises(DataError, match="source='fr' must be 'de' or 'en'"):
        load_multi30k(source="fr", accept_terms=True)


def test_absent_data_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"train\.de\.gz: is not there.*multi30k/dataset/master"):
        load_multi30k(accept_terms=True)


def test_the_published_parts_in_either_direction(folder):
    corpus = load_multi30k(accept_terms=True)
    assert [len(part) for part in (corpus.train, corpus.dev, corpus.test)] == [29, 7, 5]
    assert corpus.train[3] == ("de train 3", "en train 3")
    assert corpus.dev[0] == ("de val 0", "en val 0")
    assert corpus.test[4] == ("de test_2016_flickr 4", "en test_2016_flickr 4")
    assert load_multi30k(source="en", accept_terms=True).test[4] == corpus.test[4][::-1]
    assert corpus.n_dropped == 0
    assert "Elliott et al. 2016" in corpus.attribution
    assert "non-commercial" in corpus.attribution


def test_a_training_source_that_is_also_in_a_test_part_is_left_out(folder):
    lines = [f"de train {i}\n" for i in range(29)]
    lines[11], lines[13] = "de val 2\n", "de test_2016_flickr 3\n"
    write(folder, "train", "de", "".join(lines))
    corpus = load_multi30k(accept_terms=True)
    assert [len(part) for part in (corpus.train, corpus.dev, corpus.test)] == [27, 7, 5]
    assert corpus.n_shared == 2
    assert ("de train 12", "en train 12") in corpus.train
    assert load_multi30k(source="en", accept_terms=True).n_shared == 0


def test_the_wrong_number_of_lines_is_noticed(folder):
    write(folder, "val", "en", "one line\n")
    with pytest.raises(DataError, match=r"val\.en\.gz: has 1 lines, and the published file has 7"):
        load_multi30k(accept_terms=True)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"<html>", lambda d: b""])
def test_a_damaged_file_is_noticed(folder, damage):
    path = folder / "train.de.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train\.de\.gz: is (damaged|empty)"):
        load_multi30k(accept_terms=True)


def test_one_changed_byte_is_noticed(folder):
    path = folder / "test_2016_flickr.en.gz"
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"test_2016_flickr\.en\.gz: is damaged .*delete the file"):
        load_multi30k(accept_terms=True)
