"""From a config to its model.

Book: assembling
"""

from typing import overload

from glassformer.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, TransformerConfig
from glassformer.errors import ConfigError
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder

__all__ = ["build_model"]


@overload
def build_model(config: DecoderConfig) -> Decoder: ...
@overload
def build_model(config: EncoderConfig) -> Encoder: ...
@overload
def build_model(config: EncoderDecoderConfig) -> EncoderDecoder: ...
@overload
def build_model(config: TransformerConfig) -> Decoder | Encoder | EncoderDecoder: ...
def build_model(config: TransformerConfig) -> Decoder | Encoder | EncoderDecoder:
    """The model that ``config`` describes, with fresh weights.

    Raises:
        ConfigError: ``config`` is of no known kind.

    Book: assembling
    """
    if isinstance(config, DecoderConfig):
        return Decoder(config)
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config)
    if isinstance(config, EncoderConfig):
        return Encoder(config)
    raise ConfigError(
        f"{type(config).__name__} describes no model; "
        "use EncoderConfig, DecoderConfig or EncoderDecoderConfig"
    )
