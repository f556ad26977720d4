"""The phrasebook: whole, varied, and none of the sentences that a translator was trained on."""

import re
import unicodedata

import pytest
from glassformer.data import data_root
from glassformer.data.phrasebook import load_phrasebook

PHRASES = load_phrasebook()


def test_there_are_enough_and_none_twice():
    assert len(PHRASES) >= 400
    for language in ("german", "english", "chinese"):
        assert len({getattr(phrase, language) for phrase in PHRASES}) == len(PHRASES)


def test_topics_and_lengths_vary():
    assert len({phrase.topic for phrase in PHRASES}) >= 20
    words = sorted(len(phrase.german.split()) for phrase in PHRASES)
    assert words[0] <= 3
    assert words[-1] >= 20
    assert len({phrase.german.split()[0] for phrase in PHRASES}) > len(PHRASES) / 4


def is_whole(phrase):
    end = unicodedata.normalize("NFKC", phrase.chinese)[-1].replace("。", ".")
    return (
        re.fullmatch(r"[A-ZÄÖÜ][a-zA-ZäöüÄÖÜß ,]+[.?!]", phrase.german)
        and re.fullmatch(r"[A-Z][a-zA-Z' ,-]+[.?!]", phrase.english)
        and re.fullmatch(r"[\u4e00-\u9fff，、：]+[。？！]", phrase.chinese)
        and phrase.german[-1] == phrase.english[-1] == end
    )


def test_every_sentence_is_whole_and_ends_alike_in_all_languages():
    assert [phrase for phrase in PHRASES if not is_whole(phrase)] == []


@pytest.mark.data
@pytest.mark.skipif(
    not (data_root() / "tatoeba-deu-eng").is_dir(), reason="Tatoeba is not in $GLASSFORMER_DATA"
)
def test_none_is_in_tatoeba():
    from glassformer.data import load_tatoeba

    def plain(text):
        return re.sub(r"\W+", " ", text.lower()).strip()

    corpus = load_tatoeba("deu-eng")
    seen = {
        plain(text)
        for part in (corpus.train, corpus.dev, corpus.test)
        for pair in part
        for text in pair
    }
    ours = {plain(text) for phrase in PHRASES for text in (phrase.german, phrase.english)}
    assert ours & seen == set()
