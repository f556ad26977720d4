"""Whole models, built from a config, and the baselines that came before them."""

from glassformer.models.build import build_model
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.recurrent import ConvolutionalLM, RecurrentLM, RecurrentTranslator
from glassformer.models.vocabulary import extend_embeddings

__all__ = [
    "ConvolutionalLM",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "RecurrentLM",
    "RecurrentTranslator",
    "build_model",
    "extend_embeddings",
]
