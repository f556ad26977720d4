"""Is one system better than another, or was it lucky with these sentences?

Book: translation
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glassformer.errors import DataError
from glassformer.evaluation._metrics import References, checked, make_metric

__all__ = ["Comparison", "paired_bootstrap"]


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same sentences.

    Book: translation
    """

    score_a: float
    score_b: float
    p_value: float
    """How often a difference at least as large, in either direction, would come up by chance."""
    interval: tuple[float, float]
    """The middle 95 % of the differences of the resamples."""
    share_a_better: float
    """Share of the resamples in which A has the higher score."""
    signature: str
    """How both scores were computed."""

    @property
    def difference(self) -> float:
        """``score_a - score_b``."""
        return self.score_a - self.score_b


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: References,
    *,
    metric: Literal["bleu", "chrf"] = "bleu",
    tokenize: str = "13a",
    n_samples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Score both systems on ``n_samples`` test sets drawn, with replacement, from this one.

    Both are always scored on the same sentences, so that hard ones hurt both. The p-value is
    two-sided: the differences of the resamples, moved to mean 0, are what chance does, and p is
    the share of them as far from 0 as the real one. (sacreBLEU centres their absolute values
    instead, which calls equal systems different more often than its p says.) A system compared
    with itself has p = 1. The same seed gives the same figures.

    Raises:
        DataError: lists of different lengths, or as :func:`bleu`.
        ConfigError: no such metric or tokenizer.

    Source: Koehn 2004, section 3; Riezler & Maxwell 2005, section 3 (two-sided). Book: translation
    """
    if n_samples < 1:
        raise DataError(f"n_samples={n_samples} must be at least 1; 1000 is usual")
    scorer = make_metric(metric, tokenize)
    statistics = []
    for system in (system_a, system_b):
        lines, sets = checked(scorer, system, references)
        statistics.append(np.array(scorer._extract_corpus_statistics(lines, sets)))
    score_a, score_b = (_score(scorer, rows.sum(0)) for rows in statistics)
    n = len(system_a)
    draws = np.random.default_rng(seed).choice(n, size=(n_samples, n), replace=True)
    differences = np.array(
        [
            _score(scorer, statistics[0][draw].sum(0)) - _score(scorer, statistics[1][draw].sum(0))
            for draw in draws
        ]
    )
    by_chance = np.abs(differences - differences.mean()) >= abs(score_a - score_b)
    low, high = np.percentile(differences, [2.5, 97.5])
    return Comparison(
        score_a=score_a,
        score_b=score_b,
        p_value=(int(by_chance.sum()) + 1) / (n_samples + 1),
        interval=(float(low), float(high)),
        share_a_better=float((differences > 0).mean()),
        signature=str(scorer.get_signature()),
    )


def _score(scorer: Any, statistics: Any) -> float:
    """The score of a corpus from the sums of what its sentences have in common."""
    return float(scorer._compute_score_from_stats(statistics.tolist()).score)
