"""GPT-2.

Source: Radford et al. 2019. Book: evolution
"""

from collections.abc import Mapping
from typing import Any

from glassformer.config import DecoderConfig
from glassformer.interop._family import Family
from glassformer.interop._settings import PLAIN_NAMES, Settings, spelling
from glassformer.interop._tables import TRANSPOSED, Link, Table, both, fused, layers

# the first is max_len once more, the others belong to a head that sums up a text
_HARMLESS = frozenset(
    {
        "n_ctx",
        "pad_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    }
)


def _read_gpt2(settings: Settings) -> DecoderConfig:
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("reorder_and_upcast_attn", False)
    settings.expect("add_cross_attention", False)
    settings.expect("is_decoder", False, True)
    settings.expect("is_encoder_decoder", False)
    settings.expect("pruned_heads", {})
    for rate in ("embd_pdrop", "attn_pdrop"):
        settings.get(rate, 0.1)
    return DecoderConfig(
        vocab_size=settings.size("vocab_size"),
        max_len=settings.size("n_positions"),
        d_model=settings.size("n_embd"),
        n_heads=settings.size("n_head"),
        n_layers=settings.size("n_layer"),
        d_ff=settings.get("n_inner", None),
        activation=settings.activation("activation_function", "gelu_new", PLAIN_NAMES),
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        positions="learned",
        dropout=settings.get("resid_pdrop", 0.1),
        tie_embeddings=settings.get("tie_word_embeddings", True),
    )


def _write_gpt2(config: DecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.d_model,
        "n_head": config.n_heads,
        "n_layer": config.n_layers,
        "n_inner": config.d_ff,
        "activation_function": spelling(PLAIN_NAMES, config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _gpt2_table(config: DecoderConfig) -> Table:
    sizes = dict.fromkeys("qkv", config.d_model)
    layer = [
        *both("self_attn_norm", "ln_1"),
        *fused(
            "attn.c_attn.weight",
            {f"self_attn.{name}_proj.weight": size for name, size in sizes.items()},
            TRANSPOSED,
            dim=1,
        ),
        *fused(
            "attn.c_attn.bias",
            {f"self_attn.{name}_proj.bias": size for name, size in sizes.items()},
        ),
        *_conv1d("self_attn.o_proj", "attn.c_proj"),
        *both("feed_forward_norm", "ln_2"),
        *_conv1d("feed_forward.up_proj", "mlp.c_fc"),
        *_conv1d("feed_forward.down_proj", "mlp.c_proj"),
    ]
    return [
        Link("embedding.tokens.weight", "transformer.wte.weight"),
        Link("embedding.positions.weight", "transformer.wpe.weight"),
        *layers("decoder.blocks.{i}", "transformer.h.{i}", config.n_layers, layer),
        *both("decoder.norm", "transformer.ln_f"),
        *([] if config.tie_embeddings else [Link("lm_head.weight", "lm_head.weight")]),
    ]


def _conv1d(ours: str, theirs: str) -> Table:
    """GPT-2 stores its matrices as (input, output)."""
    return [
        Link(f"{ours}.weight", f"{theirs}.weight", (TRANSPOSED,)),
        Link(f"{ours}.bias", f"{theirs}.bias"),
    ]


def _tied(config: DecoderConfig) -> Mapping[str, str]:
    return {"lm_head.weight": "transformer.wte.weight"} if config.tie_embeddings else {}


GPT2 = Family(
    config=DecoderConfig,
    architecture="GPT2LMHeadModel",
    read=_read_gpt2,
    write=_write_gpt2,
    table=_gpt2_table,
    prefix="transformer.",
    doubles=_tied,
    # the causal mask, which older versions of their library stored
    ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
    harmless=_HARMLESS,
)
