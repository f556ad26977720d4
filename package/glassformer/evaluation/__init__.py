"""Measure a model: surprise, translations, pronunciations, alignments.

Book: training
"""

from glassformer.evaluation.alignment import (
    AlignmentScore,
    align,
    alignment_score,
    word_attention,
    word_indices,
)
from glassformer.evaluation.bootstrap import Comparison, paired_bootstrap
from glassformer.evaluation.error_rates import (
    ErrorRates,
    error_rates,
    phone_error_rate,
    word_error_rate,
)
from glassformer.evaluation.mode import device_of, evaluating
from glassformer.evaluation.perplexity import (
    Score,
    evaluate_nll,
    evaluate_pairs,
    evaluate_sequences,
)
from glassformer.evaluation.plain_text import detokenize, join_pieces
from glassformer.evaluation.translation import TranslationScore, bleu, bleu_tokenizer, chrf

__all__ = [
    "AlignmentScore",
    "Comparison",
    "ErrorRates",
    "Score",
    "TranslationScore",
    "align",
    "alignment_score",
    "bleu",
    "bleu_tokenizer",
    "chrf",
    "detokenize",
    "device_of",
    "error_rates",
    "evaluate_nll",
    "evaluate_pairs",
    "evaluate_sequences",
    "evaluating",
    "join_pieces",
    "paired_bootstrap",
    "phone_error_rate",
    "word_attention",
    "word_error_rate",
    "word_indices",
]
