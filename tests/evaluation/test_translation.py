"""BLEU and chrF: sacreBLEU's figures, and an error instead of a figure that means nothing."""

import dataclasses
import itertools
import math
import sys

import pytest
from glassformer.errors import ConfigError, DataError
from glassformer.evaluation import bleu, bleu_tokenizer, chrf, detokenize, join_pieces
from hypothesis import given
from hypothesis import strategies as st

REFERENCES = [
    "The old ferry left the harbour at noon.",
    "Nobody had told us, of course, that it wouldn't come back.",
    "We waited until it was dark.",
]
HYPOTHESES = [
    "The old ferry left the harbour at noon.",
    "Of course, nobody told us that it would not come back.",
    "We have been waiting until dark.",
]
METRICS = [bleu, chrf]


def by_hand(hypothesis: str, reference: str) -> float:
    """BLEU of one pair of plain words, from the definition."""
    said, right = hypothesis.split(), reference.split()
    precisions = []
    for n in (1, 2, 3, 4):
        grams = [
            [tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in (said, right)
        ]
        hits = sum(min(grams[0].count(gram), grams[1].count(gram)) for gram in set(grams[0]))
        precisions.append(hits / len(grams[0]))
    brevity = min(1.0, math.exp(1 - len(right) / len(said)))
    return 100 * brevity * math.prod(precisions) ** 0.25


def test_bleu_is_what_its_definition_says():
    right = "one two three four five six seven eight"
    for said in (right, "one two three four five", "one two three four nine six seven eight one"):
        score = bleu([said], [right])
        assert score.score == pytest.approx(by_hand(said, right), abs=1e-9)
        assert score.n == 1
    assert bleu([right], [right]).score == pytest.approx(100)


def test_chrf_is_what_its_definition_says():
    """Two of three letters, one of two pairs, no triple of one: the mean of the F2 scores."""
    score = chrf(["a b x"], ["abc"]).score
    assert score == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3, abs=1e-9)
    assert chrf(["abc"], ["a b c"]).score == pytest.approx(100)


def test_scores_carry_their_signature():
    assert "tok:13a|smooth:exp|version:" in bleu(HYPOTHESES, REFERENCES).signature
    assert "nrefs:1|case:mixed" in bleu(HYPOTHESES, REFERENCES).signature
    assert "tok:zh" in bleu(["你好。"], ["你好。"], tokenize="zh").signature
    assert "nc:6|nw:0" in chrf(HYPOTHESES, REFERENCES).signature
    plus = chrf(HYPOTHESES, REFERENCES, word_order=2)
    assert "nc:6|nw:2" in plus.signature
    assert plus.score != chrf(HYPOTHESES, REFERENCES).score
    with pytest.raises(dataclasses.FrozenInstanceError):
        plus.score = 99.0


@pytest.mark.parametrize("metric", METRICS)
def test_V02_a_flat_list_is_one_set_of_references(metric):
    """And not as many sets as there are strings, whose references would be letters."""
    flat = metric(HYPOTHESES, REFERENCES)
    assert flat == metric(HYPOTHESES, [REFERENCES])
    assert flat == metric(tuple(HYPOTHESES), tuple(REFERENCES))
    assert 30 < flat.score < 90


@pytest.mark.parametrize("metric", METRICS)
def test_V02_several_sets_are_a_list_of_lists(metric):
    other = ["At noon the ferry left.", "Of course, nobody told us that.", "We waited until dark."]
    both = metric(HYPOTHESES, [REFERENCES, other])
    assert both.score > metric(HYPOTHESES, REFERENCES).score
    assert "nrefs:2" in both.signature
    with pytest.raises(DataError, match="references mix strings and lists"):
        metric(HYPOTHESES, [REFERENCES[0], other, other])


@pytest.mark.parametrize("metric", METRICS)
def test_V02_one_string_is_no_list(metric):
    with pytest.raises(DataError, match=r"references is one string.*give \[text\]"):
        metric(["a"], "a")
    with pytest.raises(DataError, match=r"hypotheses is one string.*give \[text\]"):
        metric("a", ["a"])


@pytest.mark.parametrize("metric", METRICS)
def test_V03_missing_hypotheses_are_an_error_with_both_counts(metric):
    for hypotheses in (HYPOTHESES[:2], [*HYPOTHESES, "One more."], []):
        with pytest.raises(DataError, match=f"{len(hypotheses)} hypotheses and 3 references"):
            metric(hypotheses, REFERENCES)
    with pytest.raises(DataError, match="3 hypotheses and 2 references in set 1"):
        metric(HYPOTHESES, [REFERENCES, REFERENCES[:2]])
    with pytest.raises(DataError, match="nothing to score"):
        metric([], [])


PIECES = [
    ["▁The ▁old ▁fer ry ▁left ▁the ▁har bour ▁at ▁no on .", *HYPOTHESES[1:]],
    ["The old fer@@ ry left the har@@ bour at no@@ on.", *HYPOTHESES[1:]],
    ["The old fer ##ry left the har ##bour at no ##on.", *HYPOTHESES[1:]],
]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("pieces", PIECES, ids=["sentencepiece", "bpe", "wordpiece"])
def test_V04_pieces_are_an_error_on_either_side(metric, pieces):
    with pytest.raises(DataError, match=r"hypotheses: item 0 has '.+' of a tokenizer.*join_pieces"):
        metric(pieces, REFERENCES)
    with pytest.raises(DataError, match=r"references: item 0 has"):
        metric(HYPOTHESES, pieces)
    with pytest.raises(DataError, match=r"references: item 0 has"):
        metric(HYPOTHESES, [REFERENCES, pieces])
    joined = [join_pieces(line) for line in pieces]
    assert metric(joined, REFERENCES) == metric(HYPOTHESES, REFERENCES)


TOKENISED = {
    "blanks": [
        "The old ferry left the harbour at noon .",
        "Of course , nobody told us that it would not come back .",
        "We have been waiting until dark .",
    ],
    "moses": [
        "The old ferry left the harbour at noon.",
        "Of course , nobody told us that it would not come back .",
        "We have been waiting until dark .",
    ],
    "escapes": [*HYPOTHESES[:2], "The captain &apos;s well @-@ known hat."],
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", TOKENISED)
def test_V04_tokenised_text_is_an_error_on_either_side(metric, kind):
    with pytest.raises(DataError, match=r"hypotheses: .*detokenize"):
        metric(TOKENISED[kind], REFERENCES)
    with pytest.raises(DataError, match=r"references: .*detokenize"):
        metric(HYPOTHESES, TOKENISED[kind])
    plain = [detokenize(line) for line in TOKENISED[kind]]
    if kind != "escapes":
        assert metric(plain, REFERENCES) == metric(HYPOTHESES, REFERENCES)
    assert metric(plain, plain).score == pytest.approx(100)


def test_V04_text_as_people_write_it_passes():
    """A blank before ``?`` as in French, an ellipsis, a hash tag, numbers, an at sign."""
    plain = [
        "Vraiment ? Oui , bien sûr ! Dis-moi, alors.",
        "He waited ... and waited, until 3.5 or .5 remained.",
        "# Title: see ## for more, or mail me@@home.com, please.",
        "",
        "No marks at all",
        ". . . . , , ,",  # what a translator writes that has learnt nothing yet
    ]
    assert bleu(plain, plain).score == pytest.approx(100)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("metric", METRICS)
def test_V06_a_missing_line_is_no_empty_one(metric):
    with pytest.raises(DataError, match="hypotheses: item 1 is None and no string"):
        metric(["a", None], ["a", "b"])


def test_V04_pieces_come_back_as_text():
    for pieces, text in (
        ("▁So it ▁is .", "Soit is."),
        ("So@@ it is@@ .", "Soit is."),
        ("So ##it is ##.", "Soit is."),
        ("plain text", "plain text"),
        ("", ""),
    ):
        assert join_pieces(pieces) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("Well , he said : no !", "Well, he said: no!"),
        ("I do n't know , it 's ( perhaps ) ours .", "I don't know, it's (perhaps) ours."),
        ('She said " come in " and " sit " .', 'She said "come in" and "sit".'),
        ("a well @-@ known &quot; word &quot;", 'a well-known "word"'),
        ("The captain &apos;s hat , 3.5 m", "The captain's hat, 3.5 m"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_V04_tokens_come_back_as_text(tokens, text):
    assert detokenize(tokens) == text
    assert detokenize(text) == text


@pytest.mark.parametrize("metric", METRICS)
def test_V06_empty_hypotheses_keep_their_place(metric):
    """An empty line is a miss in its own place: nothing shifts, in whatever order."""
    hypotheses = ["", *HYPOTHESES[1:]]
    score = metric(hypotheses, REFERENCES)
    assert 0 < score.score < metric(HYPOTHESES, REFERENCES).score
    assert score.n == 3
    for order in itertools.permutations(range(3)):
        moved = metric([hypotheses[i] for i in order], [REFERENCES[i] for i in order])
        assert moved.score == pytest.approx(score.score, abs=1e-9)
    # the words that were said stand against their own references, and not against the next
    shifted = metric([*hypotheses[1:], ""], REFERENCES)
    assert shifted.score < score.score


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("empty", ["", " "])
def test_V06_nothing_said_is_worth_nothing(metric, empty):
    score = metric([empty] * 3, REFERENCES)
    assert score.score == 0.0
    assert score.n == 3


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_V06_any_empty_places_give_a_finite_score(kept):
    hypotheses = [line if keep else "" for line, keep in zip(HYPOTHESES, kept, strict=True)]
    for metric in METRICS:
        score = metric(hypotheses, REFERENCES).score
        assert 0 <= score <= metric(HYPOTHESES, REFERENCES).score
        assert (score == 0) == (not any(kept))


def test_a_chinese_name_in_an_english_sentence_needs_none():
    lines = ["He lives in 北京 (Beijing).", "The sign for fire is 火, as in 火车."]
    assert bleu(lines, lines).score == pytest.approx(100)
    half = ["我们在 NYC 等", "7 月 8 日"]
    with pytest.raises(DataError, match="2 of 2 references"):
        bleu(half, half)


def test_chinese_needs_its_tokenizer():
    hypotheses, references = ["我们在等火车。", "他不在家。"], ["我们等火车。", "他现在不在家。"]
    with pytest.raises(DataError, match=r'2 of 2 references.*without blanks.*tokenize="zh"'):
        bleu(hypotheses, references)
    score = bleu(hypotheses, references, tokenize="zh").score
    assert 20 < score < 90
    spaced = [" ".join(line) for line in hypotheses]
    assert bleu(spaced, references, tokenize="zh").score == score
    assert chrf(hypotheses, references).score > 20


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("zh", "zh"),
        ("zh-CN", "zh"),
        ("cmn", "zh"),
        ("ZH_tw", "zh"),
        ("de", "13a"),
        ("deu", "13a"),
        ("en", "13a"),
        ("ja", "ja-mecab"),
        ("kor", "ko-mecab"),
    ],
)
def test_each_language_has_its_tokenizer(language, tokenizer):
    assert bleu_tokenizer(language) == tokenizer


def test_an_unknown_tokenizer_or_a_missing_package(monkeypatch):
    with pytest.raises(ConfigError, match=r"tokenize='13' is no tokenizer.*did you mean 13a"):
        bleu(HYPOTHESES, REFERENCES, tokenize="13")
    with pytest.raises(ConfigError, match=r"tokenize='mosesx' is no tokenizer.*it may be none, zh"):
        bleu(HYPOTHESES, REFERENCES, tokenize="mosesx")
    with pytest.raises(ConfigError, match=r"tokenize='ja-mecab' needs a package"):
        bleu(HYPOTHESES, REFERENCES, tokenize="ja-mecab")
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ConfigError, match="need sacrebleu; get it with"):
        bleu(HYPOTHESES, REFERENCES)
