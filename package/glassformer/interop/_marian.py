"""Marian, the translators of OPUS-MT.

Source: Junczys-Dowmunt et al. 2018. Book: evolution
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glassformer.config import EncoderDecoderConfig
from glassformer.functional import sinusoidal_positions
from glassformer.interop._family import Family
from glassformer.interop._settings import PLAIN_NAMES, Settings, spelling
from glassformer.interop._tables import Link, Table, alternate_halves, both, flattened, layers


def _read_marian(settings: Settings) -> EncoderDecoderConfig:
    settings.expect("is_encoder_decoder", True)
    settings.expect("is_decoder", False)
    if not settings.get("scale_embedding", False):
        raise settings.refuse("scale_embedding", False, "True")
    settings.expect("tie_word_embeddings", True)
    settings.expect("share_encoder_decoder_embeddings", True)
    settings.expect("static_position_embeddings", True)
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        settings.expect(key, False)
    for key in ("encoder_layerdrop", "decoder_layerdrop"):
        settings.expect(key, 0.0)
    for rate in ("attention_dropout", "activation_dropout"):
        settings.get(rate, 0.0)
    vocab_size = settings.size("vocab_size")
    heads, width = settings.size("decoder_attention_heads"), settings.size("decoder_ffn_dim")
    n_encoder_layers = settings.size("encoder_layers")
    settings.expect("decoder_vocab_size", vocab_size)
    settings.expect("encoder_attention_heads", heads)
    settings.expect("encoder_ffn_dim", width)
    settings.expect("num_hidden_layers", n_encoder_layers)
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        max_len=settings.size("max_position_embeddings"),
        d_model=settings.size("d_model"),
        n_heads=heads,
        n_layers=settings.size("decoder_layers"),
        d_ff=width,
        activation=settings.activation("activation_function", "gelu", PLAIN_NAMES),
        norm_position="post",
        positions="sinusoidal",
        head_bias=True,
        dropout=settings.get("dropout", 0.1),
        pad_id=settings.get("pad_token_id", None),
        n_encoder_layers=n_encoder_layers,
    )


def _write_marian(config: EncoderDecoderConfig) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    pad_id = 0 if config.pad_id is None else config.pad_id
    return {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_len,
        "d_model": config.d_model,
        **{f"{side}_attention_heads": config.n_heads for side in sides},
        **{f"{side}_ffn_dim": config.ff_size for side in sides},
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.n_layers,
        "activation_function": spelling(PLAIN_NAMES, config.activation),
        "dropout": config.dropout,
        "attention_dropout": config.dropout,
        "activation_dropout": config.dropout,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": None,
        "bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _alternating(table: Table) -> Table:
    """Every axis of width d_model in our order of the sinusoids: sine, cosine, sine, …

    Marian's sinusoids hold all sines, then all cosines. The residual stream has no order of its
    own, so moving each number that enters or leaves it moves nothing else.
    """
    last = ("tokens.weight", *(f"{name}_proj.weight" for name in ("q", "k", "v", "up")))
    inner = ("q_proj.bias", "k_proj.bias", "v_proj.bias", "up_proj.bias", "head_bias")
    return [
        link
        if link.ours.endswith(inner)
        else link._replace(steps=(alternate_halves(1 if link.ours.endswith(last) else 0),))
        for link in table
    ]


def _marian_table(config: EncoderDecoderConfig) -> Table:
    def attention(ours: str, theirs: str) -> Table:
        names = [(f"{name}_proj", f"{name}_proj") for name in "qkv"] + [("o_proj", "out_proj")]
        pairs = [both(f"{ours}.{mine}", f"{theirs}.{other}") for mine, other in names]
        return [link for pair in pairs for link in pair]

    layer = [
        *attention("self_attn", "self_attn"),
        *both("self_attn_norm", "self_attn_layer_norm"),
        *both("feed_forward.up_proj", "fc1"),
        *both("feed_forward.down_proj", "fc2"),
        *both("feed_forward_norm", "final_layer_norm"),
    ]
    cross = [
        *attention("cross_attn", "encoder_attn"),
        *both("cross_attn_norm", "encoder_attn_layer_norm"),
    ]
    ours, theirs = "{}.blocks.{{i}}".format, "model.{}.layers.{{i}}".format
    named = [
        Link("embedding.tokens.weight", "model.shared.weight"),
        *layers(ours("encoder"), theirs("encoder"), config.encoder_layers, layer),
        *layers(ours("decoder"), theirs("decoder"), config.n_layers, [*layer, *cross]),
    ]
    bias = Link("head_bias", "final_logits_bias", (flattened(1, config.vocab_size),))
    return [*_alternating(named), bias]


def _marian_doubles(config: EncoderDecoderConfig) -> Mapping[str, str]:
    names = (
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    )
    return dict.fromkeys(names, "model.shared.weight")


def _sinusoids(config: EncoderDecoderConfig) -> Mapping[str, Tensor]:
    ours = sinusoidal_positions(torch.arange(config.max_len), config.d_model)
    theirs = alternate_halves(1).to_theirs(ours)
    return {f"model.{side}.embed_positions.weight": theirs for side in ("encoder", "decoder")}


MARIAN = Family(
    config=EncoderDecoderConfig,
    architecture="MarianMTModel",
    read=_read_marian,
    write=_write_marian,
    table=_marian_table,
    prefix="model.",
    doubles=_marian_doubles,
    computed=_sinusoids,
    harmless=frozenset({"add_bias_logits"}),
)
