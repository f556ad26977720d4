"""Glassformer: a Transformer you can see through.

The package behind the book: attention, models, caches, training and generation, exact against
PyTorch and Hugging Face. ``import glassformer`` loads nothing but torch; plotting, tokenizers and
metrics load inside what needs them.
"""

from importlib.metadata import PackageNotFoundError, version

from glassformer.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TransformerConfig,
    config_from_dict,
)
from glassformer.errors import GlassformerError
from glassformer.functional import attend, attention_weights
from glassformer.introspect import capture_attention
from glassformer.models import Decoder, Encoder, EncoderDecoder, build_model

try:
    __version__ = version("glassformer")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "GlassformerError",
    "TransformerConfig",
    "attend",
    "attention_weights",
    "build_model",
    "capture_attention",
    "config_from_dict",
]
