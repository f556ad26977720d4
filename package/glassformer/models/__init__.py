"""Whole models, built from a config."""

from glassformer.models.build import build_model
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder

__all__ = ["Decoder", "Encoder", "EncoderDecoder", "build_model"]
