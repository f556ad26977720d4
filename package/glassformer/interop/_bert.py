"""BERT and RoBERTa.

Source: Devlin et al. 2019; Liu et al. 2019. Book: evolution
"""

from typing import Any

from glassformer.config import EncoderConfig
from glassformer.errors import ConfigError
from glassformer.interop._family import Family
from glassformer.interop._settings import PLAIN_NAMES, Settings, spelling
from glassformer.interop._tables import Link, Table, both, layers, skip_rows

_LAYER = [
    *both("self_attn.q_proj", "attention.self.query"),
    *both("self_attn.k_proj", "attention.self.key"),
    *both("self_attn.v_proj", "attention.self.value"),
    *both("self_attn.o_proj", "attention.output.dense"),
    *both("self_attn_norm", "attention.output.LayerNorm"),
    *both("feed_forward.up_proj", "intermediate.dense"),
    *both("feed_forward.down_proj", "output.dense"),
    *both("feed_forward_norm", "output.LayerNorm"),
]


def _read_bert(settings: Settings) -> EncoderConfig:
    settings.expect("position_embedding_type", "absolute")
    settings.expect("is_decoder", False)
    settings.expect("is_encoder_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("pruned_heads", {})
    settings.get("attention_probs_dropout_prob", 0.1)
    return EncoderConfig(
        vocab_size=settings.size("vocab_size"),
        max_len=settings.size("max_position_embeddings"),
        d_model=settings.size("hidden_size"),
        n_heads=settings.size("num_attention_heads"),
        n_layers=settings.size("num_hidden_layers"),
        d_ff=settings.size("intermediate_size"),
        activation=settings.activation("hidden_act", "gelu", PLAIN_NAMES),
        norm_position="post",
        norm_eps=settings.get("layer_norm_eps", 1e-12),
        positions="learned",
        dropout=settings.get("hidden_dropout_prob", 0.1),
        pad_id=settings.get("pad_token_id", 0),
        n_segments=settings.get("type_vocab_size", 2),
        embedding_norm=True,
    )


def _write_bert(config: EncoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_len,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.ff_size,
        "hidden_act": spelling(PLAIN_NAMES, config.activation),
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "pad_token_id": config.pad_id,
        "type_vocab_size": _segments(config),
    }


def _segments(config: EncoderConfig) -> int:
    if not config.n_segments:
        raise ConfigError("BERT and RoBERTa add segments, and this config has n_segments=0; give 1")
    return config.n_segments


def _bert_table(config: EncoderConfig) -> Table:
    _segments(config)
    return [
        Link("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        Link("embedding.positions.weight", "embeddings.position_embeddings.weight"),
        Link("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
        *both("embedding.norm", "embeddings.LayerNorm"),
        *layers("encoder.blocks.{i}", "encoder.layer.{i}", config.n_layers, _LAYER),
    ]


def _read_roberta(settings: Settings) -> EncoderConfig:
    """RoBERTa counts positions from ``pad_token_id + 1``; the rows before are never read."""
    pad_id = settings.get("pad_token_id", 1)
    if not isinstance(pad_id, int):
        raise settings.refuse("pad_token_id", pad_id, "an id, from which positions are counted")
    bert = _read_bert(settings)
    fields = {name: getattr(bert, name) for name in bert.to_dict() if name != "kind"}
    return EncoderConfig(**{**fields, "pad_id": pad_id, "max_len": bert.max_len - pad_id - 1})


def _first_position(config: EncoderConfig) -> int:
    if config.pad_id is None:
        raise ConfigError("RoBERTa counts positions from pad_id + 1; give the config a pad_id")
    return config.pad_id + 1


def _write_roberta(config: EncoderConfig) -> dict[str, Any]:
    length = config.max_len + _first_position(config)
    return {**_write_bert(config), "max_position_embeddings": length}


def _roberta_table(config: EncoderConfig) -> Table:
    skip = skip_rows(_first_position(config))
    return [
        link._replace(steps=(skip,)) if link.ours == "embedding.positions.weight" else link
        for link in _bert_table(config)
    ]


_BUFFERS = (r"embeddings\.position_ids", r"embeddings\.token_type_ids", r"pooler\..*")

BERT = Family(
    config=EncoderConfig,
    architecture="BertModel",
    read=_read_bert,
    write=_write_bert,
    table=_bert_table,
    prefix="bert.",
    ignored=(*_BUFFERS, r"cls\..*"),
    harmless=frozenset({"tie_word_embeddings"}),
)
ROBERTA = Family(
    config=EncoderConfig,
    architecture="RobertaModel",
    read=_read_roberta,
    write=_write_roberta,
    table=_roberta_table,
    prefix="roberta.",
    ignored=(*_BUFFERS, r"lm_head\..*"),
    harmless=frozenset({"tie_word_embeddings"}),
)
