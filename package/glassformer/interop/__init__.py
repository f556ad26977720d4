"""Weights that others trained: Hugging Face models and torch.nn, in both directions.

Book: evolution
"""

from glassformer.interop.hugging_face import (
    config_from_hugging_face,
    config_to_hugging_face,
    load_hugging_face,
    save_hugging_face,
    weight_table,
)

__all__ = [
    "config_from_hugging_face",
    "config_to_hugging_face",
    "load_hugging_face",
    "save_hugging_face",
    "weight_table",
]
