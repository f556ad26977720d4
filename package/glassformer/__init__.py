"""Glassformer: a Transformer you can see through.

The package behind the book: attention, models, caches, training and generation, exact against
PyTorch and Hugging Face. ``import glassformer`` loads nothing but torch; plotting, tokenizers and
metrics load inside what needs them.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from glassformer.pretrained import load_pretrained

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
    "load_pretrained",
]


def __getattr__(name: str) -> Any:
    """``load_pretrained`` brings file formats along, which nothing else here needs."""
    if name == "load_pretrained":
        from glassformer.pretrained import load_pretrained

        return load_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
