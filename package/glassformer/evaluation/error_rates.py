"""How many phones, and how many words, does a pronouncer get wrong?

Book: cross_attention
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.errors import DataError, optional

__all__ = ["ErrorRates", "error_rates", "phone_error_rate", "word_error_rate"]


@dataclass(frozen=True)
class ErrorRates:
    """Counts over all words; the rates are taken once, from the totals.

    Book: cross_attention
    """

    edits: int
    """Phones to insert, delete or replace."""
    n_phones: int
    """Phones of the references that the words were compared with."""
    wrong_words: int
    """Words with at least one edit."""
    n_words: int

    @property
    def phone_error_rate(self) -> float:
        """Edits per reference phone; above 1 if too much is said."""
        return self.edits / self.n_phones

    @property
    def word_error_rate(self) -> float:
        """Share of words with any error."""
        return self.wrong_words / self.n_words


def error_rates(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> ErrorRates:
    """Compare each word's phones with the nearest of its pronunciations.

    Nearest is the one with the fewest edits, and of several such the longest; its length is what
    the edits are measured by. Stress digits count as they stand: ``AH0`` is not ``AH1``.

    Args:
        hypotheses: the phones of each word, such as ``["K", "AE1", "T"]``; none is allowed.
        references: the pronunciations of each word, every one a list of phones.

    Raises:
        DataError: numbers of words that differ, no words, a word without a pronunciation, or a
            string where a list of phones should be (its letters would be counted).
        ConfigError: rapidfuzz is not installed.

    Source: Levenshtein 1966; Yao & Zweig 2015, section 4.1, for several references.
    Book: cross_attention
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} hypotheses and pronunciations of {len(references)} words; each "
            "word needs both, so keep an empty list where nothing was said"
        )
    if not hypotheses:
        raise DataError("no words, so there is no rate of errors; give at least one")
    distance = _levenshtein()
    edits = n_phones = wrong_words = 0
    for index, (said, pronunciations) in enumerate(zip(hypotheses, references, strict=True)):
        _check(index, said, pronunciations)
        fewest, length = min(
            ((distance(said, right), len(right)) for right in pronunciations),
            key=lambda found: (found[0], -found[1]),
        )
        edits += fewest
        n_phones += length
        wrong_words += fewest > 0
    return ErrorRates(edits, n_phones, wrong_words, len(hypotheses))


def phone_error_rate(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Edits per reference phone over all words; see :func:`error_rates`.

    Raises:
        DataError, ConfigError: as :func:`error_rates`.

    Book: cross_attention
    """
    return error_rates(hypotheses, references).phone_error_rate


def word_error_rate(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Share of words that are not one of their pronunciations; see :func:`error_rates`.

    Raises:
        DataError, ConfigError: as :func:`error_rates`.

    Book: cross_attention
    """
    return error_rates(hypotheses, references).word_error_rate


def _check(index: int, said: Sequence[str], pronunciations: Sequence[Sequence[str]]) -> None:
    if isinstance(pronunciations, str) or any(isinstance(p, str) for p in (said, *pronunciations)):
        raise DataError(
            f"word {index}: a string was given where a list of phones is needed, and its letters "
            "would be counted; split it, and give each word a list of pronunciations"
        )
    if not pronunciations or not all(pronunciations):
        raise DataError(f"word {index}: a pronunciation is missing or empty; leave the word out")


def _levenshtein() -> Any:
    with optional("error rates need rapidfuzz", '"glassformer[data]"'):
        from rapidfuzz.distance import Levenshtein
    return Levenshtein.distance
