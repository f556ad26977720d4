"""Weights that others trained: Hugging Face, GGUF and torch.nn.

Book: evolution
"""

from glassformer.interop.gguf import gguf_table, load_gguf
from glassformer.interop.hugging_face import (
    config_from_hugging_face,
    config_to_hugging_face,
    load_hugging_face,
    save_hugging_face,
    weight_table,
)
from glassformer.interop.installed import load_minilm, load_smollm2
from glassformer.interop.torch_nn import (
    attention_from_torch,
    attention_to_torch,
    mask_from_torch,
    mask_to_torch,
    stack_from_torch,
    stack_to_torch,
    transformer_from_torch,
    transformer_to_torch,
)

__all__ = [
    "attention_from_torch",
    "attention_to_torch",
    "config_from_hugging_face",
    "config_to_hugging_face",
    "gguf_table",
    "load_gguf",
    "load_hugging_face",
    "load_minilm",
    "load_smollm2",
    "mask_from_torch",
    "mask_to_torch",
    "save_hugging_face",
    "stack_from_torch",
    "stack_to_torch",
    "transformer_from_torch",
    "transformer_to_torch",
    "weight_table",
]
