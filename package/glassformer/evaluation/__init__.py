"""Measure a model: surprise per token, perplexity, bits per character.

Book: training
"""

from glassformer.evaluation.mode import device_of, evaluating
from glassformer.evaluation.perplexity import Score, evaluate_nll, evaluate_sequences

__all__ = ["Score", "device_of", "evaluate_nll", "evaluate_sequences", "evaluating"]
