"""LLaMA and its descendants Qwen2 and Phi-3.

Source: Touvron et al. 2023; Yang et al. 2024; Abdin et al. 2024.
Book: evolution
"""

from collections.abc import Mapping
from typing import Any

from glassformer.config import DecoderConfig
from glassformer.interop._family import Family
from glassformer.interop._settings import GATED_NAMES, Settings, spelling
from glassformer.interop._tables import Link, Table, both, fused, layers


def _head(config: DecoderConfig) -> Table:
    return [] if config.tie_embeddings else [Link("lm_head.weight", "lm_head.weight")]


def _tied(config: DecoderConfig) -> Mapping[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_embeddings else {}


def _read_rotary(settings: Settings, **choices: Any) -> DecoderConfig:
    """What LLaMA and its descendants have in common."""
    settings.expect("attention_dropout", 0.0)
    settings.expect("is_decoder", False, True)
    settings.expect("is_encoder_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("pruned_heads", {})
    fields: dict[str, Any] = {
        "vocab_size": settings.size("vocab_size"),
        "max_len": settings.size("max_position_embeddings"),
        "d_model": settings.size("hidden_size"),
        "n_heads": settings.size("num_attention_heads"),
        "n_layers": settings.size("num_hidden_layers"),
        "n_kv_heads": settings.get("num_key_value_heads", None),
        "d_ff": settings.size("intermediate_size"),
        "activation": settings.activation("hidden_act", "silu", GATED_NAMES),
        "norm": "rms",
        "norm_eps": settings.get("rms_norm_eps", 1e-6),
        "rope_base": settings.rope_base(),
        "bias": False,
        "pad_id": settings.get("pad_token_id", None),
        "tie_embeddings": settings.get("tie_word_embeddings", False),
    }
    return DecoderConfig(**{**fields, **choices})


def _write_rotary(config: DecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_len,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ff_size,
        "hidden_act": spelling(GATED_NAMES, config.activation),
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _rotary_table(config: DecoderConfig, projections: Table, gates: Table) -> Table:
    layer = [
        Link("self_attn_norm.weight", "input_layernorm.weight"),
        *projections,
        Link("feed_forward_norm.weight", "post_attention_layernorm.weight"),
        *gates,
    ]
    return [
        Link("embedding.tokens.weight", "model.embed_tokens.weight"),
        *layers("decoder.blocks.{i}", "model.layers.{i}", config.n_layers, layer),
        Link("decoder.norm.weight", "model.norm.weight"),
        *_head(config),
    ]


def _gates(config: DecoderConfig) -> Table:
    names = [f"{name}_proj" for name in ("gate", "up", "down")]
    return [
        link
        for name in names
        for link in both(f"feed_forward.{name}", f"mlp.{name}", bias=config.bias)
    ]


def _read_llama(settings: Settings) -> DecoderConfig:
    bias = settings.get("attention_bias", False)
    settings.expect("mlp_bias", bias)
    return _read_rotary(settings, bias=bias, head_size=settings.get("head_dim", None))


def _write_llama(config: DecoderConfig) -> dict[str, Any]:
    return {
        **_write_rotary(config),
        "head_dim": config.d_head,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
    }


def _llama_table(config: DecoderConfig) -> Table:
    names = [f"self_attn.{name}_proj" for name in "qkvo"]
    projections = [link for name in names for link in both(name, name, bias=config.bias)]
    return _rotary_table(config, projections, _gates(config))


def _read_qwen2(settings: Settings) -> DecoderConfig:
    settings.expect("use_sliding_window", False)
    settings.expect("use_mrope", False)
    kinds = settings.get("layer_types", None) or []
    if set(kinds) - {"full_attention"}:
        raise settings.refuse("layer_types", kinds, "layers of full attention")
    return _read_rotary(settings, qkv_bias=True)


def _qwen2_table(config: DecoderConfig) -> Table:
    names = [(f"self_attn.{name}_proj", name != "o") for name in "qkvo"]
    projections = [link for name, bias in names for link in both(name, name, bias=bias)]
    return _rotary_table(config, projections, _gates(config))


def _read_phi3(settings: Settings) -> DecoderConfig:
    settings.expect("attention_bias", False)
    settings.expect("embd_pdrop", 0.0)
    length = settings.size("max_position_embeddings")
    settings.expect("original_max_position_embeddings", length)
    return _read_rotary(
        settings,
        dropout=settings.get("resid_pdrop", 0.0),
        sliding_window=settings.get("sliding_window", None),
    )


def _write_phi3(config: DecoderConfig) -> dict[str, Any]:
    return {
        **_write_rotary(config),
        "original_max_position_embeddings": config.max_len,
        "resid_pdrop": config.dropout,
        "sliding_window": config.sliding_window,
    }


def _phi3_table(config: DecoderConfig) -> Table:
    heads = {"q": config.n_heads, "k": config.kv_heads, "v": config.kv_heads}
    projections = fused(
        "self_attn.qkv_proj.weight",
        {f"self_attn.{name}_proj.weight": n * config.d_head for name, n in heads.items()},
    )
    gates = fused(
        "mlp.gate_up_proj.weight",
        {f"feed_forward.{name}_proj.weight": config.ff_size for name in ("gate", "up")},
    )
    return _rotary_table(
        config,
        [*projections, Link("self_attn.o_proj.weight", "self_attn.o_proj.weight")],
        [*gates, Link("feed_forward.down_proj.weight", "mlp.down_proj.weight")],
    )


_ROTARY: dict[str, Any] = {
    "prefix": "model.",
    "doubles": _tied,
    # frequencies, which older versions of their library stored
    "ignored": (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
}
LLAMA = Family(
    config=DecoderConfig,
    architecture="LlamaForCausalLM",
    read=_read_llama,
    write=_write_llama,
    table=_llama_table,
    harmless=frozenset({"pretraining_tp", "is_llama_config"}),
    **_ROTARY,
)
QWEN2 = Family(
    config=DecoderConfig,
    architecture="Qwen2ForCausalLM",
    read=_read_qwen2,
    write=_write_rotary,
    table=_qwen2_table,
    harmless=frozenset({"sliding_window", "max_window_layers"}),
    **_ROTARY,
)
PHI3 = Family(
    config=DecoderConfig,
    architecture="Phi3ForCausalLM",
    read=_read_phi3,
    write=_write_phi3,
    table=_phi3_table,
    **_ROTARY,
)
