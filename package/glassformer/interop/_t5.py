"""T5, with its version 1.1 and Flan-T5.

Source: Raffel et al. 2020. Book: evolution
"""

from collections.abc import Mapping
from typing import Any

from glassformer.config import EncoderDecoderConfig
from glassformer.interop._family import Family
from glassformer.interop._settings import Settings, spelling
from glassformer.interop._tables import Link, Table, layers, scaled
from glassformer.nn.feed_forward import GATED

# "gated-gelu" means tanh-GELU to them, whatever "gelu" means elsewhere
_T5_ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu", "silu": "silu"}


def _read_t5(settings: Settings) -> EncoderDecoderConfig:
    settings.expect("is_encoder_decoder", True)
    settings.expect("is_decoder", False)
    settings.expect("pruned_heads", {})
    activation = settings.activation("feed_forward_proj", "relu", _T5_ACTIVATIONS)
    gated = activation in GATED
    settings.expect("is_gated_act", gated)
    # their library ties everything since version 5, and keeps the old meaning in another key
    tied = settings.get("tie_word_embeddings", True)
    tied = settings.get("scale_decoder_outputs", tied)
    n_layers = settings.size("num_layers")
    return EncoderDecoderConfig(
        vocab_size=settings.size("vocab_size"),
        max_len=settings.get("n_positions", 512),
        d_model=settings.size("d_model"),
        n_heads=settings.size("num_heads"),
        n_layers=settings.get("num_decoder_layers", None) or n_layers,
        head_size=settings.size("d_kv"),
        d_ff=settings.size("d_ff"),
        activation=activation,
        norm="rms",
        norm_eps=settings.get("layer_norm_epsilon", 1e-6),
        positions="relative",
        relative_buckets=settings.get("relative_attention_num_buckets", 32),
        relative_max_distance=settings.get("relative_attention_max_distance", 128),
        bias=False,
        dropout=settings.get("dropout_rate", 0.1),
        tie_embeddings=tied,
        n_encoder_layers=n_layers,
    )


def _write_t5(config: EncoderDecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "d_model": config.d_model,
        "num_heads": config.n_heads,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.n_layers,
        "d_kv": config.d_head,
        "d_ff": config.ff_size,
        "feed_forward_proj": spelling(_T5_ACTIVATIONS, config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "dropout_rate": config.dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "is_encoder_decoder": True,
        "pad_token_id": 0 if config.pad_id is None else config.pad_id,
        "decoder_start_token_id": 0 if config.pad_id is None else config.pad_id,
    }


def _t5_attention(ours: str, theirs: str, d_head: int) -> Table:
    """T5 does not divide its scores by sqrt(d_head): our queries are that much longer."""
    return [
        Link(f"{ours}.q_proj.weight", f"{theirs}.q.weight", (scaled(d_head**0.5),)),
        *(Link(f"{ours}.{name}_proj.weight", f"{theirs}.{name}.weight") for name in "kvo"),
    ]


def _t5_stack(side: str, count: int, layer: Table, norm_scale: float = 1.0) -> Table:
    steps = () if norm_scale == 1.0 else (scaled(norm_scale),)
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        Link(f"{side}.relative.weight", bias),
        *layers(f"{side}.blocks.{{i}}", f"{side}.block.{{i}}", count, layer),
        Link(f"{side}.norm.weight", f"{side}.final_layer_norm.weight", steps),
    ]


def _t5_feed_forward(place: int, *, gated: bool) -> Table:
    theirs = f"layer.{place}.DenseReluDense"
    names = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    return [
        *(
            Link(f"feed_forward.{ours}_proj.weight", f"{theirs}.{name}.weight")
            for ours, name in {**names, "down": "wo"}.items()
        ),
        Link("feed_forward_norm.weight", f"layer.{place}.layer_norm.weight"),
    ]


def _t5_table(config: EncoderDecoderConfig) -> Table:
    """With a tied head T5 multiplies the logits by ``d_model ** -0.5``: the closing norm does."""
    gated = config.activation in GATED
    listen = [
        *_t5_attention("self_attn", "layer.0.SelfAttention", config.d_head),
        Link("self_attn_norm.weight", "layer.0.layer_norm.weight"),
    ]
    cross = [
        *_t5_attention("cross_attn", "layer.1.EncDecAttention", config.d_head),
        Link("cross_attn_norm.weight", "layer.1.layer_norm.weight"),
    ]
    encoder = [*listen, *_t5_feed_forward(1, gated=gated)]
    decoder = [*listen, *cross, *_t5_feed_forward(2, gated=gated)]
    head_scale = config.d_model**-0.5 if config.tie_embeddings else 1.0
    head = [] if config.tie_embeddings else [Link("lm_head.weight", "lm_head.weight")]
    return [
        Link("embedding.tokens.weight", "shared.weight"),
        *_t5_stack("encoder", config.encoder_layers, encoder),
        *_t5_stack("decoder", config.n_layers, decoder, head_scale),
        *head,
    ]


def _t5_doubles(config: EncoderDecoderConfig) -> Mapping[str, str]:
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    return dict.fromkeys(names, "shared.weight")


T5 = Family(
    config=EncoderDecoderConfig,
    architecture="T5ForConditionalGeneration",
    read=_read_t5,
    write=_write_t5,
    table=_t5_table,
    doubles=_t5_doubles,
    # a table in cross-attention that old versions of their library stored and never used
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    harmless=frozenset({"pad_token_id", "dense_act_fn"}),
)
