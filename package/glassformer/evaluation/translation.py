"""How close are translations to those of people? BLEU and chrF, always with their signature.

The scores are sacreBLEU's. What stands around them refuses what would give a plausible and wrong
number: lists of different lengths, pieces or tokens for text, the wrong tokenizer for Chinese.

Book: translation
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.evaluation._metrics import References, checked, make_metric

__all__ = ["TranslationScore", "bleu", "bleu_tokenizer", "chrf"]

# codes of two and of three letters, as data sets name their languages
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}


@dataclass(frozen=True)
class TranslationScore:
    """A score, and what one must know to compare it with another.

    Book: translation
    """

    score: float
    """From 0 to 100; more is better."""
    signature: str
    """How it was computed. Scores with different signatures are not comparable."""
    n: int
    """Number of translations scored."""


def bleu(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a"
) -> TranslationScore:
    """Corpus BLEU: how many of the 1- to 4-grams are in a reference, with a price for brevity.

    Give text as people write it: the metric tokenizes both sides itself, which is what makes
    scores comparable. An empty hypothesis keeps its place and matches nothing.

    Args:
        hypotheses: one translation for each source sentence.
        references: a list of strings is one set of references, in the order of the hypotheses;
            for several sets give a list of such lists.
        tokenize: sacreBLEU's tokenizer for the target language; :func:`bleu_tokenizer` names it.

    Raises:
        DataError: lists of different lengths, nothing to score, subword pieces or tokenised text
            (:func:`join_pieces` and :func:`detokenize` undo them), or text without blanks under a
            tokenizer that needs them.
        ConfigError: no such tokenizer.

    Source: Papineni et al. 2002, section 2.3; Post 2018. Book: translation
    """
    return _score(make_metric("bleu", tokenize), hypotheses, references)


def chrf(
    hypotheses: Sequence[str], references: References, *, word_order: int = 0
) -> TranslationScore:
    """Corpus chrF: how many of the character 1- to 6-grams agree, blanks left out.

    It needs no tokenizer and sees that a wrong ending is better than a wrong word.

    Args:
        hypotheses, references: as for :func:`bleu`.
        word_order: 2 counts word 1- and 2-grams too, which is chrF++.

    Raises:
        DataError: as :func:`bleu`.

    Source: Popović 2015, section 2; Popović 2017. Book: translation
    """
    return _score(make_metric("chrf", word_order=word_order), hypotheses, references)


def bleu_tokenizer(language: str) -> str:
    """The tokenizer that :func:`bleu` needs for a target language: ``zh``, and mostly ``13a``.

    Args:
        language: a code such as ``de``, ``zh-CN`` or ``cmn``.

    Book: translation
    """
    return _TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")


def _score(metric: Any, hypotheses: Sequence[str], references: References) -> TranslationScore:
    lines, sets = checked(metric, hypotheses, references)
    result = metric.corpus_score(lines, sets)
    return TranslationScore(float(result.score), str(metric.get_signature()), len(lines))
