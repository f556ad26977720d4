"""The small grammar: its endings, its orders, and alignments that are true."""

import pytest
from glassformer.data._lexicon import NOUNS, TIMES, VERBS
from glassformer.data._realise import Meaning, Thing, chinese, english, german
from glassformer.data.grammar import generate_triples
from glassformer.errors import DataError

SAMPLE = generate_triples(300, seed=7)


def noun(german):
    return next(noun for noun in NOUNS if noun.german == german)


def verb(participle):
    return next(verb for verb in VERBS if verb.participle == participle)


def meaning(*, did="gelesen", **changes):
    return Meaning(
        **{
            "who": Thing("who", noun("Lehrer"), 1, True),
            "verb": verb(did),
            "what": Thing("what", noun("Brief"), 1, True),
            "tense": "past",
            "when": None,
            "where": None,
            "time_first": False,
            "negated": False,
            "question": False,
        }
        | changes
    )


def texts(meaning):
    de, en, zh = german(meaning), english(meaning), chinese(meaning)
    return (
        " ".join(word.text for word in de),
        " ".join(word.text for word in en),
        "".join(word.text for word in zh),
    )


def a(name, **changes):
    return Thing("what", noun(name), **{"how_many": 1, "definite": False} | changes)


YESTERDAY, TOMORROW = TIMES[0], TIMES[5]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            meaning(),
            (
                "Der Lehrer hat den Brief gelesen.",
                "The teacher read the letter.",
                "那位老师读了那封信。",
            ),
        ),
        (
            meaning(negated=True, what=a("Apfel"), did="gegessen", when=YESTERDAY, time_first=True),
            (
                "Gestern hat der Lehrer keinen Apfel gegessen.",
                "The teacher did not eat an apple yesterday.",
                "昨天那位老师没有吃一个苹果。",
            ),
        ),
        (
            meaning(did="mitgebracht", tense="present", what=a("Ei", how_many=2), question=True),
            (
                "Bringt der Lehrer zwei Eier mit?",
                "Does the teacher bring two eggs?",
                "那位老师带来两个鸡蛋吗？",
            ),
        ),
        (
            meaning(did="abgeholt", tense="future", negated=True, what=a("Hut", definite=True)),
            (
                "Der Lehrer wird den Hut nicht abholen.",
                "The teacher will not collect the hat.",
                "那位老师不会取那顶帽子。",
            ),
        ),
        (
            meaning(
                did="gefüttert",
                what=a(
                    "Hund",
                    definite=True,
                    how_many=3,
                    relative=(Thing("owner", noun("Frau"), 1, True), verb("gesucht")),
                ),
                when=TOMORROW,
                tense="future",
                time_first=True,
            ),
            (
                "Morgen wird der Lehrer die drei Hunde, die die Frau gesucht hat, füttern.",
                "Tomorrow the teacher will feed the three dogs that the woman looked for.",
                "明天那位老师会喂那个女人找的那三只狗。",
            ),
        ),
    ],
)
def test_the_same_meaning_in_three_languages(said, expected):
    assert texts(said) == expected


def test_the_alignment_of_a_sentence_by_hand():
    triple = next(
        t for t in SAMPLE if "letzte Woche" in t.german_text and not t.german_text.endswith("?")
    )
    de, en = triple.german, triple.english
    pairs = {(de[i].strip(".,"), en[j].strip(".,")) for i, j in triple.german_english}
    assert {("letzte", "last"), ("Woche", "week")} <= pairs
    assert ("letzte", "week") not in pairs


def test_every_alignment_is_within_both_sentences_and_misses_little():
    for t in SAMPLE:
        for pairs, left in ((t.german_english, t.german), (t.chinese_english, t.chinese)):
            assert {i for i, _ in pairs} <= set(range(len(left)))
            assert {j for _, j in pairs} <= set(range(len(t.english)))
        # what German or English words say, the other says too, somewhere
        assert {i for i, _ in t.german_english} == set(range(len(t.german)))
        assert {j for _, j in t.german_english} == set(range(len(t.english)))


def test_nouns_translate_nouns_in_all_sentences():
    plurals = {n.german_plural: n for n in NOUNS} | {n.german: n for n in NOUNS}
    checked = 0
    for t in SAMPLE:
        for i, j in t.german_english:
            word = plurals.get(t.german[i].strip(".,?"))
            if word is not None:
                assert t.english[j].strip(".,?") in {word.english, word.english_plural}
                checked += 1
    assert checked > 500


def test_words_of_a_language_make_its_text():
    for t in SAMPLE:
        assert tuple(t.german_text.split()) == t.german
        assert tuple(t.english_text.split()) == t.english
        assert t.chinese_text == "".join(t.chinese)
        assert " " not in t.chinese_text


def test_sentences_differ_and_a_seed_repeats_them():
    assert len({t.german_text for t in SAMPLE}) == 300
    assert generate_triples(50, seed=7) == SAMPLE[:50]
    assert generate_triples(50, seed=8) != SAMPLE[:50]


def test_there_is_no_end_of_them():
    assert len(generate_triples(3000)) == 3000


def test_none_is_no_request():
    with pytest.raises(DataError, match=r"n=0 sentences .* at least 1"):
        generate_triples(0)
